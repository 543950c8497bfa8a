"""News for what is not there yet."""

from __future__ import annotations

import threading

from driver.later import Later


def test_what_was_told_before_comes_first_and_in_its_order() -> None:
    later: Later[list[int]] = Later()
    for number in range(3):
        later.tell(lambda target, number=number: target.append(number))  # type: ignore[misc] # bound for the loop
    target: list[int] = []
    later.attach(target)
    later.tell(lambda target: target.append(3))
    assert target == [0, 1, 2, 3]


def test_news_that_comes_while_the_target_comes_is_not_lost() -> None:
    later: Later[list[int]] = Later()
    target: list[int] = []
    begin = threading.Barrier(3)

    def tell() -> None:
        begin.wait()
        for _ in range(500):
            later.tell(lambda target: target.append(1))

    threads = [threading.Thread(target=tell) for _ in range(2)]
    for thread in threads:
        thread.start()
    begin.wait()
    later.attach(target)
    for thread in threads:
        thread.join()
    assert len(target) == 1000


def test_where_there_will_be_none_nothing_is_kept() -> None:
    later: Later[list[int]] = Later()
    later.tell(lambda target: target.append(1))
    later.give_up()
    later.tell(lambda target: target.append(2))
    target: list[int] = []
    later.attach(target)
    assert target == []
    assert later._waiting == []
