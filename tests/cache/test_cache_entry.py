"""What a listing shows of a record, and what it does not."""

from surefoot.cache.entry import Entry, feature_entry, part_entry
from surefoot.cache.feature_rows import FeatureRow
from surefoot.cache.inventory import Row
from surefoot.testing.cache_kit import MODEL, blocks_of, feature_name_of, image_of


def test_a_part_shows_its_block_and_group():
    (block,) = blocks_of(range(4))
    row = Row(block.name, MODEL, "rows", 4, 8, 512, 9.0)
    name = block.name.hex()
    assert part_entry(row, ("ram", "ssd")) == Entry(
        name, "rows", 4, 8, 512, ("ram", "ssd"), 9.0, "part"
    )


def test_features_show_how_many_tokens_stand_for_the_item_and_no_group():
    name = feature_name_of(image_of(1))
    row = FeatureRow(name, MODEL, 7, 512, 9.0)
    assert feature_entry(row, ("ssd",)) == Entry(
        name.hex(), "", 0, 7, 512, ("ssd",), 9.0, "features"
    )


def test_an_entry_names_the_media_item_nowhere():
    item = image_of(1)
    row = FeatureRow(feature_name_of(item), MODEL, 7, 512, 9.0)
    assert item.name.hex() not in repr(feature_entry(row, ("ssd",)))
