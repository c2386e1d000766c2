"""What ``surefoot serve`` says when the model is ready can be pasted into a shell."""

import base64
import io
import json
import shlex

import pytest
from PIL import Image

from surefoot.cli.serve import ready_message


def pasted(*, sees):
    """The arguments of the command and its body."""
    said = ready_message("served", "http://127.0.0.1:8000", sees=sees)
    command = said.partition("\n\n")[2].replace("\\\n", " ")
    *arguments, body = shlex.split(command)
    return arguments, json.loads(body)


@pytest.mark.parametrize("sees", [False, True])
def test_the_message_is_a_command_for_a_shell(sees):
    arguments, body = pasted(sees=sees)
    assert arguments[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert arguments[-1] == "-d"
    assert body["model"] == "served"
    assert len(body["messages"]) == 1


def test_a_model_that_sees_is_shown_a_red_square():
    _, body = pasted(sees=True)
    image, question = body["messages"][0]["content"]
    assert question == {"type": "text", "text": "One word: what color?"}
    head, data = image["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    square = Image.open(io.BytesIO(base64.b64decode(data, validate=True))).convert("RGB")
    assert square.getcolors() == [(64 * 64, (255, 0, 0))]


def test_a_model_that_does_not_see_is_asked_in_words():
    _, body = pasted(sees=False)
    assert isinstance(body["messages"][0]["content"], str)
