from tensorboard.compat.proto.summary_pb2 import Summary

class SessionLog:
    START: int
    def __init__(self, status: int) -> None: ...

class Event:
    def __init__(
        self,
        wall_time: float,
        step: int = ...,
        file_version: str = ...,
        summary: Summary = ...,
        session_log: SessionLog = ...,
    ) -> None: ...
    def SerializeToString(self) -> bytes: ...
