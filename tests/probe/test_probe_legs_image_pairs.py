"""Legs of pictures: what is shown under which text, and what of it must not be confused."""

import base64
import io
import json

import pytest
from leg_walks import EVERY, Walked
from PIL import Image

from surefoot.probe import legs_images
from surefoot.probe.legs import Leg
from surefoot.probe.legs_images import SIZES, over_a_restart
from surefoot.probe.trail import BudgetEnded, NotApplicable, Request, Role
from surefoot.probe.verdicts import Verdict
from surefoot.testing.broken_engine import BrokenEngine
from surefoot.testing.broken_faults import Behaviour, Fault, Skills

# --- what is shown -------------------------------------------------------------------------------


def urls(value):
    if isinstance(value, dict):
        return [*([value["url"]] if "url" in value else []), *urls([*value.values()])]
    return [url for one in value for url in urls(one)] if isinstance(value, list) else []


def pictures(request):
    """The pixels and sizes of a request's pictures."""
    found = []
    for url in urls(request.body):
        with Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) as image:
            found.append((image.tobytes(), image.size))
    return found


def blind(request):
    """A request's body with its pictures blotted out."""
    body = json.dumps(request.body)
    for url in urls(request.body):
        body = body.replace(url, "")
    return body


def test_three_pictures_are_shown_under_one_text_to_the_byte():
    walked = Walked("image-swap").walk()
    asked = [one for one in walked.of() if one.label in legs_images.SWAPPED]
    first = asked[0]
    assert {blind(one) for one in asked} == {blind(first)}
    assert len({pictures(one)[0] for one in asked}) == 3
    assert {one.expected for one in asked} == set(legs_images.SWAPPED)
    assert all({one.expected, *one.others} == set(legs_images.SWAPPED) for one in asked)


def test_the_same_bytes_are_shown_in_both_dimensions_and_orders():
    walked = Walked("image-bytes").walk()
    firsts = []
    for accused, donor, why in walked.trail.twins:
        (bytes_a, size_a), (bytes_b, size_b) = (
            pictures(one.request)[0] for one in (accused, donor)
        )
        assert bytes_a == bytes_b
        assert size_a == size_b[::-1] != size_b
        assert f"{size_a[0]}x{size_a[1]}" in why
        assert blind(accused.request) == blind(donor.request)
        assert walked.trail.seen.index(donor) < walked.trail.seen.index(accused)
        firsts.append(donor.request.expected)
    assert firsts == ["wide", "tall", "wide"]
    streams = {pictures(donor.request)[0][0] for _, donor, _ in walked.trail.twins}
    assert len(streams) == len(SIZES)


def test_sizes_that_are_refused_are_replaced_by_others():
    def tiny(body):
        return any(
            min(size) < 8 for _, size in pictures(Request("", {"messages": body["messages"]}))
        )

    walked = Walked("image-bytes", refuses=tiny).walk()
    sizes = [max(pictures(donor.request)[0][1]) for _, donor, _ in walked.trail.twins]
    assert sizes == [12, 96, 12]
    refused = [seen for seen in walked.trail.seen if not seen.reply.ok]
    assert {seen.role for seen in refused} == {Role.MEASURED}


def test_a_server_that_takes_no_such_picture_is_left():
    with pytest.raises(NotApplicable, match="no picture of 96x64"):
        Walked(
            "image-bytes", refuses=lambda body: len(str(urls(body))) > 2 and body["max_tokens"] == 1
        ).walk()


def test_a_picture_comes_third_after_two_turns_that_were_asked():
    walked = Walked("image-later").walk()
    one, two, *later = walked.of(Role.PLAIN, Role.WARM)
    later = [ask for ask in later if "turn 4" not in ask.label]
    messages = later[0].body["messages"]
    assert [len(ask.body["messages"]) for ask in (one, two)] == [2, 4]
    assert one.body["messages"] == messages[:2]
    assert two.body["messages"] == messages[:4]
    assert urls(two.body) == []
    assert {blind(ask) for ask in later} == {blind(later[0])}
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "user", "assistant", "user")
    ]


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(skills=Skills(colour=False))])
def test_a_removed_picture_leaves_the_history_as_it_was(behaviour):
    walked = Walked("image-removed", behaviour=behaviour).walk()
    cold = walked.of(Role.COLD)[-3:]
    plain = walked.of(Role.PLAIN)
    assert [len(urls(one.body)) for one in cold] == [1, 1, 0]
    assert [len(urls(one.body)) for one in plain] == [0, 0, 1]
    for one, other in zip(cold, plain, strict=True):
        texts = [
            [
                part.get("text")
                for message in ask.body["messages"]
                for part in message["content"]
                if isinstance(part, dict) and part["type"] == "text"
            ]
            for ask in (one, other)
        ]
        assert texts[0] == texts[1]
        without = min(one, other, key=lambda ask: len(urls(ask.body)))
        assert without.others
        assert set(without.others) < set(legs_images.SWAPPED)


def test_two_pictures_change_places_and_the_answer_follows():
    walked = Walked("image-order").walk()
    (there, _), backs = walked.of(Role.COLD)[-2:], walked.of(Role.PLAIN)
    back = backs[0]
    assert pictures(there) == pictures(back)[::-1]
    assert blind(there) == blind(back)
    assert (there.expected, back.expected) == ("red", "green")
    for one in walked.of(Role.WARM):
        assert one.others
        assert one.expected not in one.others


def test_a_large_block_holds_an_early_picture():
    walked = Walked("image-swap", behaviour=Behaviour(block_tokens=256)).walk()
    messages = walked.of(Role.WARM)[0].body["messages"]
    assert len(messages[0]["content"].split()) == 2  # the opening alone stands before it
    kinds = [part["type"] for part in messages[1]["content"]]
    assert kinds == ["image_url", "text"]


# --- what is confused further down, at once, long after, and in an earlier turn -----------------


def labelled(walked, part):
    return [seen for seen in walked.trail.seen if part in seen.request.label]


def test_twins_differ_in_their_lower_half_only():
    walked = Walked("image-swap").walk()
    assert len(walked.trail.twins) == len(legs_images.BANDS)
    for accused, donor, _ in walked.trail.twins:
        (one, size), (other, same_size) = (pictures(seen.request)[0] for seen in (accused, donor))
        assert size == same_size
        assert one[: len(one) // 2] == other[: len(other) // 2]
        assert one != other
        assert sorted(one) == sorted(other)
        assert blind(accused.request) == blind(donor.request)
        assert accused.request.expected is donor.request.expected is None
        assert accused.reply.tokens != donor.reply.tokens


def test_without_logprobs_there_are_no_twins():
    walked = Walked("image-swap", behaviour=Behaviour(offers_logprobs=False)).walk()
    assert walked.trail.twins == []


def test_three_never_seen_pictures_are_asked_at_once():
    walked = Walked("image-swap").walk()
    once = [seen for seen in labelled(walked, "at once") if seen.role is not Role.REFERENCE]
    assert [seen.role for seen in once] == [Role.PLAIN] * 3 + [Role.WARM] * 3
    assert len({blind(seen.request) for seen in once}) == 1
    before = walked.trail.seen[: walked.trail.seen.index(once[0])]
    assert blind(once[0].request) not in {blind(seen.request) for seen in before}


@pytest.mark.parametrize("salts", [True, False])
def test_a_row_of_pictures_is_shown_again_where_no_prefix_is_kept(salts):
    walked = Walked("image-swap", behaviour=Behaviour(knows_salts=salts)).walk()
    row = [seen for seen in labelled(walked, "of a row") if seen.role is not Role.REFERENCE]
    first, again = row[: legs_images.ROW_PICTURES], row[legs_images.ROW_PICTURES :]
    shown = [pictures(seen.request) for seen in first]
    shown_again = [pictures(seen.request) for seen in again]
    assert {seen.role for seen in first} == {Role.COLD}
    assert {seen.role for seen in again} == {Role.PLAIN}
    assert shown != shown_again
    assert sorted(shown) == sorted(shown_again)
    assert len({str(one) for one in shown}) == legs_images.ROW_PICTURES
    prompts = {seen.request.prompt for seen in first}
    assert all((seen.request.prompt in prompts) is salts for seen in again)
    assert not any(seen.reused_tokens for seen in again)


def test_only_what_was_seen_in_a_row_is_shown_again(monkeypatch):
    walked = Walked("image-swap")
    featured, row = BrokenEngine._featured, legs_images._in_a_row

    def seen_by_turns(engine, token):
        token = featured(engine, token)
        if isinstance(token, str) or engine._turns % 2:
            return token
        return token._replace(picture=token.picture._replace(rgb=bytes(len(token.picture.rgb))))

    async def dazzled(*of):
        monkeypatch.setattr(BrokenEngine, "_featured", seen_by_turns)
        await row(*of)
        monkeypatch.setattr(BrokenEngine, "_featured", featured)

    monkeypatch.setattr(legs_images, "_in_a_row", dazzled)
    again = [seen for seen in labelled(walked.walk(), "of a row") if seen.role is Role.PLAIN]
    assert len(again) == legs_images.ROW_PICTURES // 2


def test_a_small_memo_of_features_is_found(monkeypatch):
    slots, places = [None] * 8, {}

    def featured(engine, token):
        if isinstance(token, str):
            return token
        if token.picture not in places:
            places[token.picture] = len(places) % len(slots)
            slots[places[token.picture]] = token.picture
        return token._replace(picture=slots[places[token.picture]])

    monkeypatch.setattr(BrokenEngine, "_featured", featured)
    found = Walked("image-swap").judged
    assert found.verdict is Verdict.CONTAMINATED
    assert "of a row" in found.reason


def test_one_of_two_pictures_is_exchanged():
    walked = Walked("image-order").walk()
    plain = walked.of(Role.PLAIN)
    for place, colours in enumerate(legs_images.PAIRS):
        back, second_changed, first_changed = plain[3 * place : 3 * place + 3]
        green, red = pictures(back)
        assert pictures(second_changed)[0] == red
        assert pictures(first_changed)[1] == green
        assert pictures(second_changed)[1] == pictures(first_changed)[0] not in (red, green)
        assert second_changed.expected == first_changed.expected not in colours
        assert set(colours) < {*second_changed.others}
        texts = {
            one.body["messages"][0]["content"] for one in (back, second_changed, first_changed)
        }
        assert len(texts) == 1


def test_text_stands_before_and_after_two_pictures():
    messages = Walked("image-order").walk().of(Role.WARM)[0].body["messages"]
    before, after = messages[0]["content"], messages[1]["content"][-1]["text"]
    assert len(before.split()) == pytest.approx(len(after.split()), rel=0.1)


@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(block_tokens=256)])
def test_keys_of_the_first_picture_only_are_found(behaviour):
    found = Walked("image-order", Fault.KEY_FIRST_PICTURE_ONLY, behaviour).judged
    assert found.verdict is Verdict.CONTAMINATED, found.reason


def test_a_picture_of_an_earlier_turn_is_exchanged():
    walked = Walked("image-later").walk()
    asked = [one for one in walked.of() if one.label.endswith("asked in turn 4")]
    assert [one.expected for one in asked] == [*legs_images.SWAPPED]
    assert len({blind(one) for one in asked}) == 1
    messages = asked[0].body["messages"]
    assert [len(urls(one)) for one in messages] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert [one["role"] for one in messages[-2:]] == ["assistant", "user"]


def test_an_earlier_turn_that_the_model_cannot_see_is_left():
    def four_turns(body):
        return len(body["messages"]) > 6

    walked = Walked("image-later", refuses=four_turns)
    assert walked.judged.verdict is Verdict.CLEAN
    assert labelled(walked, "asked in turn 4") == []


# --- over a restart ------------------------------------------------------------------------------


async def unmoved():
    """What a leg has for its controls."""


def over(monkeypatch, behaviour, tokens=400_000):
    """What is to be asked over a restart, and the trail it was proven on."""
    asked = []

    async def walk(run, trail):
        trail.budget.tokens, trail.fresh = tokens, unmoved
        asked.extend(await over_a_restart(run, trail))

    monkeypatch.setitem(EVERY, "restart", Leg("restart", "", lambda facts: 0, walk))
    walked = Walked("restart", behaviour=behaviour).walk()
    return asked, walked.trail


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (Behaviour(), ["red", "blue", "red"]),
        (Behaviour(sees_images=False), []),
        (Behaviour(skills=Skills(colour=False)), []),
    ],
)
def test_pictures_over_a_restart_are_three_under_one_text(behaviour, expected, monkeypatch):
    asked, trail = over(monkeypatch, behaviour)
    assert [one.expected for one in asked] == expected
    assert len({one.label for one in asked}) == len(expected)
    assert len({str(pictures(one)) for one in asked}) == len(expected)
    assert len({blind(one) for one in asked}) == (1 if expected else 0)
    assert trail.fresh is unmoved


def test_a_budget_that_ends_in_the_proof_ends_the_leg(monkeypatch):
    with pytest.raises(BudgetEnded):
        over(monkeypatch, Behaviour(), tokens=1)
