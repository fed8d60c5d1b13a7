"""A clock that moves only when it is told to, in place of the module ``time``."""


class FakeTime:
    """now: seconds, to be moved.  used: CPU seconds, None: those that have passed.  tick: seconds of each look."""

    def __init__(self, used: float | None = None, tick: float = 0.0) -> None:
        self.now, self.used, self.tick, self.looks = 0.0, used, tick, 0

    def perf_counter(self) -> float:
        self.looks += 1
        self.now += self.tick
        return self.now

    def thread_time(self) -> float:
        return self.now if self.used is None else self.used

    process_time = thread_time
