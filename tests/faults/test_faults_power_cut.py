"""The power is cut after every change that a whole cache makes to its disk; every state is opened.

With each state of the disk comes every inventory that could be left: none, or as of any transaction
so far. What was promised is restored, what was fenced stays barred, and the bytes add up (I3, I6,
I8).
"""

from contextlib import closing

import pytest

from surefoot.cache.fences import Reason
from surefoot.testing import cache_kit
from surefoot.testing.power_cut import Film, FilmedDisk, Promise, check, check_whole
from surefoot.tiers.ssd import SsdTier

ONE = cache_kit.blocks_of(range(1, 13))
OTHER = cache_kit.blocks_of([1, 2, 3, 4, *range(20, 28)])
IMAGE = cache_kit.image_of(1)
TIGHT = 10_500


def commit(cache, blocks, **how):
    for block in blocks:
        cache_kit.commit(cache, block, **how)
    assert cache.drain(60)


def look(cache, item=IMAGE):
    cache.commit_features(cache_kit.feature_name_of(item), item, cache_kit.features_of(item))


def commits(film):
    with film.open() as cache:
        look(cache)
        commit(cache, ONE[:2])


def commits_a_block(film):
    with film.open() as cache:
        commit(cache, ONE[:1])


def evicts(film):
    film.ssd_bytes = TIGHT
    with film.open(filmed=False) as cache:
        commit(cache, ONE)
    with film.open() as cache:
        commit(cache, OTHER[1:])
        assert cache.status()["tiers"]["ssd"]["evictions"]


def quarantines(film):
    with film.open(filmed=False) as cache:
        commit(cache, ONE[:1])
        commit(cache, ONE[1:], spoil=True)
    with film.open() as cache:
        cache.quarantine(ONE[1].name, Reason.BY_HAND, "not true")
        commit(cache, ONE[1:])
        plan = cache.plan(ONE, limit=3)
        assert cache.restore(plan, deadline_s=30).boundary == 3


def rebuilds(film):
    """Open a full store whose inventory is lost, with a damaged record and a writer's leavings."""
    with film.open(filmed=False) as cache:
        look(cache)
        commit(cache, ONE)
        commit(cache, OTHER[1:], spoil=True)
        cache.quarantine(OTHER[1].name, Reason.BY_HAND, "not true")
    for name in ("", "-wal", "-shm"):
        (film.folder / f"inventory.sqlite{name}").unlink(missing_ok=True)
    film.inventories.clear()
    gone = min(film.promise.records)
    film.promise = Promise(film.promise.records - {gone}, film.promise.fences)
    path = next(path for path in film.disk.files() if path.stem == gone)
    film.disk.remove(path)
    film.disk.write_new(path, b"no record")
    film.disk.sync_file(path)
    film.disk.write_new(path.with_name(f"{gone}.0.staged.dead"), b"half")
    film.disk.sync_folder(path.parent)
    with film.open():
        pass


SCENES = [commits, evicts, quarantines, rebuilds]


def check_every_state(scene, film, tmp_path, *, most, again=11):
    """Check every state; in one of ``again`` go on, and check that all is as if never cut."""
    for number, (frame, disk, inventory) in enumerate(film.states(most=most)):
        # Before its fence is promised, what is not true may be served.
        lied = scene is quarantines and not frame.promise.fences
        if scene is not rebuilds:  # which begins with a damaged one
            check_whole(disk)
        state = check(
            disk,
            inventory,
            frame.promise,
            tmp_path / f"state-{number}",
            chains=[ONE[:1] if lied else ONE, OTHER],
            ssd_bytes=film.ssd_bytes,
        )
        with closing(state) as cache:
            if not number % again and not lied:
                commit(cache, ONE)
                assert film.ssd_bytes == TIGHT or restored_to(cache) == 3
    return number + 1


def restored_to(cache):
    return cache.restore(cache.plan(ONE, limit=3), deadline_s=30).boundary


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("most", [2, pytest.param(1000, marks=pytest.mark.long)])
def test_whatever_the_power_leaves_is_opened_and_keeps_what_was_promised(tmp_path, scene, most):
    film = Film(tmp_path / "film")
    scene(film)
    assert len(film.frames) >= 3
    assert check_every_state(scene, film, tmp_path, most=most) > 2 * len(film.frames)


# Wrong caches that the checks above must tell from the right one.


class NeverSyncsFiles(FilmedDisk):
    def sync_file(self, path): ...


class NeverSyncsFolders(FilmedDisk):
    def sync_folder(self, path): ...


class SyncsAfterTheRename(SsdTier):
    def put(self, key, data):
        path = self._path(key)
        self._make_folders(path.parent)
        staged = path.with_name(f"{key}.0{self._suffix}")
        self._disk.write_new(staged, data)
        self._disk.rename(staged, path)
        self._disk.sync_folder(path.parent)
        self._disk.sync_file(path)
        return self._disk.used(path)


class StoresLater(SsdTier):
    """What is put is there for this process, and on the medium once the next thing is put."""

    late: str

    def __init__(self, root, disk, writer):
        super().__init__(root, disk, writer)
        self.waiting = {}

    def put(self, key, data):
        if self._root.name != self.late:
            return super().put(key, data)
        for waiting in self.waiting.items():
            super().put(*waiting)
        self.waiting = {key: data}
        return -(-len(data) // 512) * 512

    def get(self, key):
        return self.waiting.get(key) or super().get(key)


class PutsUpFencesLater(StoresLater):
    late = "fences"


class ClaimsRecordsEarly(StoresLater):
    late = "records"


MUTANTS = [
    (commits_a_block, NeverSyncsFiles, SsdTier),
    (commits_a_block, NeverSyncsFolders, SsdTier),
    (commits_a_block, FilmedDisk, SyncsAfterTheRename),
    (commits_a_block, FilmedDisk, ClaimsRecordsEarly),
    (quarantines, FilmedDisk, PutsUpFencesLater),
]


@pytest.mark.parametrize(("scene", "disk", "tier"), MUTANTS)
def test_a_cache_that_forgets_a_step_or_their_order_is_found_out(tmp_path, scene, disk, tier):
    film = Film(tmp_path / "film", disk=disk(), make_tier=tier)
    scene(film)
    with pytest.raises(AssertionError):
        check_every_state(scene, film, tmp_path, most=2)
