"""What an answer is compared with: cold, else round the cache, else the first of its prompt."""

from scenes import Scene

from surefoot.probe.references import asked, distinct, reference, uncached
from surefoot.probe.trail import Role


def test_an_answer_is_compared_with_the_cold_one_then_with_that_round_the_cache():
    scene = Scene()
    request = scene.request("A", scene.plants.code())
    first = scene.saw(Role.PLAIN, request, "x")
    warm = scene.saw(Role.WARM, request, "x", cached=512)
    assert reference(scene.trail, warm) is first
    assert reference(scene.trail, first) is first
    round_ = scene.saw(Role.REFERENCE, request, "x")
    assert reference(scene.trail, warm) is round_
    cold = scene.saw(Role.COLD, request, "x")
    assert reference(scene.trail, warm) is cold
    assert [*uncached(scene.trail, warm)] == [cold, round_]
    assert [asked(one) for one in (first, round_, cold)] == [
        "asked before",
        "asked without the cache",
        "asked first",
    ]


def test_what_was_to_go_round_the_cache_and_was_counted_as_reused_is_no_reference():
    scene = Scene()
    request = scene.request("A", scene.plants.code())
    first = scene.saw(Role.PLAIN, request, "x")
    scene.saw(Role.REFERENCE, request, "x", cached=512)
    assert reference(scene.trail, first) is first


def test_who_asks_is_no_part_of_what_is_compared():
    scene = Scene()
    bare = scene.saw(Role.COLD, scene.request("A", note="n"), "x")
    salted = scene.saw(Role.APART, scene.request("A", note="n", cache_salt="s", user="u"), "x")
    other = scene.saw(Role.PLAIN, scene.request("A", note="m"), "x")
    assert reference(scene.trail, salted) is bare
    assert distinct([salted, bare, other, other]) == [salted, other]
