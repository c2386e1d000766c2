"""The error tree: what went wrong, and who can act on it.

    SurefootError
      RequestError        the client: change the request (400)
        NotAuthorized     the client: send a key that this server knows (401)
        ModelNotFound     the client: name the model that is served (404)
        TooLarge          the client: send less (413)
      SetupError          the operator: a flag, a folder, a port or a model that cannot be used
      CapacityError       the client, later: the same request can succeed
      CacheFault          nobody: recompute, and say it in the receipt
        CorruptRecord     bytes that are not what was sealed under the name asked for
        TierError         a tier failed or did not answer in time
      EngineError         the operator: the model runtime failed

A miss is a value with a reason, never one of these. A broken contract inside our own code is an
``AssertionError``; it is a bug, and no fallback catches it.
"""


class SurefootError(Exception):
    """Base of every error raised on purpose; its text is one sentence for whoever can act."""


class RequestError(SurefootError):
    """Refuse a request; the text names the field, the value and the limit."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class NotAuthorized(RequestError):
    """Refuse a request whose API key is missing or unknown."""


class ModelNotFound(RequestError):
    """Refuse a request for a model that this server does not serve."""


class TooLarge(RequestError):
    """Refuse a request whose body or parts exceed a stated limit."""


class SetupError(SurefootError):
    """Refuse to start: a flag, folder, port or model cannot be used as given."""


class CapacityError(SurefootError):
    """Refuse for now; the same request can succeed after ``retry_after_s``."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CacheFault(SurefootError):
    """Stored state could not be used; the caller recomputes and the answer is unaffected."""


class CorruptRecord(CacheFault):
    """Bytes read from a tier are not what was sealed under the name asked for."""


class TierError(CacheFault):
    """A tier failed to do what it was asked, or did not answer in time."""


class EngineError(SurefootError):
    """The model runtime failed while computing state or tokens."""
