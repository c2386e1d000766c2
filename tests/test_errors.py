"""Every error has a page (what happened, why, what to do) and one place in the tree."""

import re
from pathlib import Path

import pytest

from surefoot import errors

PAGE = Path(__file__).parent.parent / "docs" / "ERRORS.md"
CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, Exception)
]
PARENTS = {
    "SurefootError": "Exception",
    "RequestError": "SurefootError",
    "NotAuthorized": "RequestError",
    "ModelNotFound": "RequestError",
    "TooLarge": "RequestError",
    "SetupError": "SurefootError",
    "CapacityError": "SurefootError",
    "CacheFault": "SurefootError",
    "CorruptRecord": "CacheFault",
    "TierError": "CacheFault",
    "EngineError": "SurefootError",
}


def sections():
    """Return the page's text by second-level heading."""
    _, *found = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    return {text.split("\n", 1)[0].strip(): text for text in found}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_has_a_page(error):
    text = sections().get(error.__name__)
    assert text, f"write '## {error.__name__}' in docs/ERRORS.md"
    for question in ("**What happened.**", "**Why.**", "**What to do.**"):
        assert question in text, f"docs/ERRORS.md: {error.__name__} does not answer {question}"


def test_every_page_is_of_an_error():
    strangers = set(sections()) - {error.__name__ for error in CLASSES}
    assert not strangers, f"docs/ERRORS.md describes what errors.py does not have: {strangers}"


def test_the_tree_is_the_one_in_the_docstring():
    assert {error.__name__: error.__base__.__name__ for error in CLASSES} == PARENTS
    for name in PARENTS:
        assert re.search(rf"^ +{name}\b", errors.__doc__, re.MULTILINE)


def test_a_bug_is_none_of_these():
    assert not issubclass(AssertionError, errors.SurefootError)
    assert not any(issubclass(error, AssertionError) for error in CLASSES)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_errors_text_is_its_sentence(error):
    assert str(error("The value of n is 3; the limit is 1.")) == (
        "The value of n is 3; the limit is 1."
    )


def test_a_refused_request_names_its_field_and_code():
    error = errors.ModelNotFound("no", param="model", code="model_not_found")
    assert (error.param, error.code) == ("model", "model_not_found")
    assert (errors.RequestError("no").param, errors.RequestError("no").code) == (None, None)


def test_a_full_server_says_when_to_come_back():
    assert errors.CapacityError("full").retry_after_s == 1
    assert errors.CapacityError("full", retry_after_s=7).retry_after_s == 7
