"""The one exception of the Python API, and how the errors of the parts below become it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from supervisor.ports.errors import PortError


class EverstepError(Exception):
    """Raised for a caller's mistake or a missing part. Its text is what the command line prints: what happened, to which
    thing, and what to do; several problems are several lines. `__cause__` is the error below it, if there is one."""


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Turns an error that has a sentence for its reader into EverstepError. Any other is a fault of ours, and passes."""
    try:
        yield
    except PortError as error:
        raise EverstepError(str(error)) from error
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise EverstepError(f"{error.strerror or error}{where}") from error
    except ValueError as error:
        from supervisor.shell.control.observe import Unreadable
        from supervisor.shell.runfile.parse import RunFileError
        from supervisor.wire.records import RecordError
        from supervisor.wire.security import SecurityError

        if not isinstance(error, RecordError | RunFileError | SecurityError | Unreadable):
            raise
        raise EverstepError(str(error)) from error
