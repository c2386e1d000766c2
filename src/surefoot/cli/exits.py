"""Exit codes: one row per kind of error, most specific first."""

from surefoot.errors import (
    CacheFault,
    CapacityError,
    CorruptRecord,
    EngineError,
    ModelNotFound,
    NotAuthorized,
    RequestError,
    SetupError,
    SurefootError,
    TierError,
    TooLarge,
)

OK = 0
USAGE = 2
DIFFERS = 1  # the work was done, and its result is a no
INTERNAL = 70
TRY_AGAIN = 75

EXIT_CODES: dict[type[SurefootError], int] = {
    NotAuthorized: USAGE,
    ModelNotFound: USAGE,
    TooLarge: USAGE,
    RequestError: USAGE,
    SetupError: USAGE,
    CapacityError: TRY_AGAIN,
    CorruptRecord: INTERNAL,
    TierError: TRY_AGAIN,
    CacheFault: INTERNAL,
    EngineError: INTERNAL,
    SurefootError: INTERNAL,
}


def exit_code(error: SurefootError) -> int:
    """Return the exit code of an error: the row of its nearest class."""
    return next(EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES)
