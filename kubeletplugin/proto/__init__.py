"""Messages and services that the kubelet speaks, generated from the .proto files beside this one by hack/protos.py.

The file paths are this project's own, because Python's descriptor pool refuses two files of one name and upstream
calls all of them ``api.proto``; the package names are upstream's, because they are part of the name on the wire.
"""
