"""Asks the code of Cluster Autoscaler and Karpenter, so that the ports in ``driver/analysis/autoscaler`` stay true.

The files that hold the rules are compiled as they are; of what they import from the rest of their programs, ``go/``
has a few lines that stand in its place. Nothing of theirs is kept in this repository, only the answers
(``tests/data/autoscaler/golden.json``).
"""
