"""The two ways a command fails on purpose. Everything else is a bug and shows its traceback."""

import errno


class RequestError(Exception):
    """The request was wrong: the message is one line that names the value and what mends it. Exit code 2."""


class WorkError(Exception):
    """The work failed on good instructions (a damaged file, a diverged run): one line. Exit code 1."""


class Apart(WorkError):
    """An error of this rank, which others may wait for and cannot be told of it."""


class NotWritten(WorkError):
    """The system refused to write; some runs may go on without what was to be written."""


def of_system(error: BaseException) -> bool:
    """Whether the system refused what was asked of it: a disk's fault, too many open files, a file closed to the user.
    Of a damaged file libraries raise an OSError without a number, or torch and numpy one of EINVAL, of one that was
    cut."""
    return getattr(error, "errno", None) not in (None, errno.EINVAL)
