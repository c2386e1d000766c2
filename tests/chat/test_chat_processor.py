"""Pixels to what the tower consumes: the model's own processor, one image at a time."""

from itertools import product

import numpy as np
import pytest
from PIL import Image as Pillow
from small_pictures import GEMMA, QWEN, QWEN_FULL, consumed, encoded, gemma, noise, qwen, solid
from transformers.models.auto import image_processing_auto
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from surefoot import identity
from surefoot.chat import processor as processor_module
from surefoot.chat.processor import ImageProcessor, load_processor
from surefoot.errors import RequestError, SetupError

SIZES = ((64, 64), (96, 32), (32, 96), (300, 200), (1, 1), (3, 200), (200, 1), (31, 4), (4, 3))


def tensor(item):
    return np.frombuffer(item.data, "<f4").reshape(item.shape)


def picture(width, height):
    return encoded(Pillow.fromarray(noise(width, height)))


@pytest.mark.parametrize("size", SIZES)
def test_a_qwen_item_is_what_the_processor_makes_of_the_image_alone(size):
    alone = Qwen2VLImageProcessorPil(**QWEN)(
        images=Pillow.fromarray(noise(*size)), return_tensors="np"
    )
    item = consumed(qwen(), picture(*size))
    assert (tensor(item) == alone["pixel_values"]).all()
    assert item.grid == tuple(alone["image_grid_thw"][0])
    assert item.tokens == alone["image_grid_thw"].prod() // 4
    assert (item.kind, item.dtype) == ("image", "float32")


@pytest.mark.parametrize("size", SIZES)
def test_a_gemma_item_holds_the_real_patches_and_a_grid_that_says_where_they_are(size):
    alone = Gemma4ImageProcessorPil(**GEMMA)(
        images=Pillow.fromarray(noise(*size)), return_tensors="np"
    )
    item = consumed(gemma(), picture(*size))
    rows, cols = item.grid
    assert item.shape == (rows * cols, 3 * 16 * 16)
    assert item.tokens == alone["num_soft_tokens_per_image"][0] == rows * cols // 9
    padding = alone["pixel_values"].shape[1] - rows * cols
    assert padding >= 0
    whole = np.pad(tensor(item), [(0, padding), (0, 0)])
    assert (whole == alone["pixel_values"][0]).all()
    places = [(x, y) for y, x in product(range(rows), range(cols))] + [(-1, -1)] * padding
    assert (alone["image_position_ids"][0] == np.array(places)).all()


def test_a_token_is_as_many_patches_as_the_settings_say():
    for merge in (1, 2, 4):
        item = consumed(qwen(merge_size=merge), picture(128, 64))
        assert item.tokens == item.shape[0] // merge**2
    for pool in (1, 2):
        item = consumed(gemma(pooling_kernel_size=pool), picture(96, 96))
        assert item.tokens == item.shape[0] // pool**2


def test_a_solid_picture_is_what_the_arithmetic_says():
    red = tensor(consumed(qwen(), solid((255, 0, 51))))
    channels = red.reshape(16, 3, 2, 16, 16)
    for at, value in enumerate((1.0, -1.0, -0.6)):
        assert np.allclose(channels[:, at], value, atol=1e-6)
    blue = tensor(consumed(gemma(), solid((0, 51, 255), (48, 48))))
    assert np.allclose(blue.reshape(-1, 16, 16, 3), (0, 0.2, 1), atol=1e-6)


@pytest.mark.parametrize("make", [qwen, gemma, lambda: qwen(**QWEN_FULL)])
def test_every_shape_within_the_limits_becomes_an_item(make):
    processor = make()
    for width, height in [*SIZES, (1, 200), (2, 400), (400, 2), (5, 1000), (640, 480)]:
        item = consumed(processor, solid("red", (width, height)))
        assert item.tokens > 0
        assert len(item.data) == 4 * item.shape[0] * item.shape[1]


def squares(pixels, places):
    """Cut [rows, columns, 3] into squares of 16 pixels, in the order of their places."""
    return [pixels[16 * y : 16 * y + 16, 16 * x : 16 * x + 16] for y, x in places]


# Few rows or columns must not be taken for colours, nor one for the other.
@pytest.mark.parametrize("size", [*SIZES, (3, 8), (8, 3), (3, 3), (1, 3), (4, 1)])
@pytest.mark.parametrize("family", ["qwen", "gemma"])
def test_an_item_is_the_scaled_picture_cut_into_squares(family, size):
    item = consumed({"qwen": qwen, "gemma": gemma}[family](), picture(*size))
    rows, cols = item.grid[-2:]
    scaled = Pillow.fromarray(noise(*size)).resize(
        (16 * cols, 16 * rows), Pillow.Resampling.BICUBIC
    )
    unit = np.asarray(scaled, np.float64) / 255
    if family == "gemma":
        wanted = squares(unit, product(range(rows), range(cols)))
        flat = [one.reshape(-1) for one in wanted]
    else:
        fours = product(range(0, rows, 2), range(0, cols, 2), range(2), range(2))
        wanted = squares(2 * unit - 1, ((y + dy, x + dx) for y, x, dy, dx in fours))
        flat = [np.stack([one.transpose(2, 0, 1)] * 2, axis=1).reshape(-1) for one in wanted]
    assert np.abs(tensor(item) - np.array(flat)).max() < 1e-6


def test_a_size_that_the_processor_refuses_is_the_clients_to_mend():
    pixels = Pillow.new("RGB", (300, 1))
    with pytest.raises(RequestError, match=r"image 3.*300 x 1 pixels.*aspect ratio") as caught:
        qwen().item(pixels, place="image 3 (messages[0].content[1])", param="messages[0]")
    assert caught.value.param == "messages[0]"


def test_the_name_is_that_of_the_tensor():
    processor = qwen()
    item = consumed(processor, picture(40, 90))
    settings = (processor.digest, item.dtype, item.shape, item.grid, item.data)
    assert item.name == identity.media_name(*settings)


# --- settings ------------------------------------------------------------------------------------

OTHER_SETTINGS = (
    {"size": {"shortest_edge": 64 * 64, "longest_edge": 128 * 128}},
    {"size": {"shortest_edge": 32 * 32, "longest_edge": 96 * 96}},
    {"patch_size": 8},
    {"merge_size": 1},
    {"temporal_patch_size": 1},
    {"image_mean": [0.5, 0.5, 0.25]},
    {"image_std": [0.5, 0.25, 0.5]},
    {"resample": 2},
    {"rescale_factor": 1 / 256},
    {"do_resize": False},
    {"do_rescale": False},
    {"do_normalize": False},
    {"do_convert_rgb": False},
)


def test_every_setting_is_part_of_the_name_even_where_the_tensor_is_the_same():
    data = solid("white")
    processors = [qwen(**change) for change in ({}, *OTHER_SETTINGS)]
    assert len({one.digest for one in processors}) == len(processors)
    assert len({consumed(one, data).name for one in processors}) == len(processors)
    other = [gemma(), gemma(max_soft_tokens=140), gemma(pooling_kernel_size=2), gemma(patch_size=8)]
    assert len({one.digest for one in other}) == len(other)
    assert not {one.digest for one in other} & {one.digest for one in processors}


def test_equal_settings_are_one_name_however_they_were_given(tmp_path):
    processor = Qwen2VLImageProcessorPil(**QWEN)
    processor.save_pretrained(tmp_path)
    assert load_processor(str(tmp_path)).digest == qwen().digest
    turned = Qwen2VLImageProcessorPil(**dict(reversed(QWEN.items())))
    assert ImageProcessor(turned).digest == qwen().digest
    assert qwen(resample=Pillow.Resampling.BICUBIC).digest == qwen(resample=3).digest


def test_settings_are_spelled_in_one_way():
    settings = {"b": (1, 2), "a": Pillow.Resampling.BICUBIC, "c": {"y": 0.5, "x": True}}
    spelled = '["Kind",{"a":3,"b":[1,2],"c":{"x":true,"y":0.5}}]'
    assert processor_module._settings("Kind", settings) == spelled


def test_the_class_is_a_setting(monkeypatch):
    class Other(Qwen2VLImageProcessorPil):
        pass

    families = dict(processor_module._FAMILIES)
    families["Other"] = families["Qwen2VLImageProcessorPil"]
    monkeypatch.setattr(processor_module, "_FAMILIES", families)
    assert ImageProcessor(Other(**QWEN)).digest != qwen().digest


# --- loading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("torchvision", [False, True])
@pytest.mark.parametrize(
    "spelled", ["Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil"]
)
def test_the_pillow_form_is_loaded_whatever_is_installed(
    tmp_path, monkeypatch, spelled, torchvision
):
    Qwen2VLImageProcessorPil(**QWEN).save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    kind = '"image_processor_type": "Qwen2VLImageProcessor"'
    assert kind in file.read_text()
    file.write_text(file.read_text().replace(kind, f'"image_processor_type": "{spelled}"'))
    monkeypatch.setattr(image_processing_auto, "is_torchvision_available", lambda: torchvision)
    load, backends = image_processing_auto._load_backend_class, []
    monkeypatch.setattr(
        image_processing_auto,
        "_load_backend_class",
        lambda name, backend, fast: backends.append(backend) or load(name, backend, fast),
    )
    processor = load_processor(str(tmp_path))
    assert backends == ["pil"]
    assert type(processor._processor) is Qwen2VLImageProcessorPil
    assert processor.digest == qwen().digest


def test_a_processor_inside_a_processors_file_is_found(tmp_path):
    settings = Gemma4ImageProcessorPil(**GEMMA).to_json_string()
    whole = f'{{"image_processor": {settings}, "processor_class": "Gemma4Processor"}}'
    (tmp_path / "processor_config.json").write_text(whole)
    assert load_processor(str(tmp_path)).digest == gemma().digest


def test_a_processor_that_is_not_known_or_not_there_is_said_by_name(tmp_path):
    with pytest.raises(SetupError, match="SiglipImageProcessorPil is not known"):
        ImageProcessor(SiglipImageProcessorPil())
    with pytest.raises(SetupError, match="no image processor could be loaded"):
        load_processor(str(tmp_path))


# --- the memo ------------------------------------------------------------------------------------


def counting(monkeypatch, processor):
    made = []
    fresh = processor._fresh
    monkeypatch.setattr(processor, "_fresh", lambda *given: made.append(1) or fresh(*given))
    return made


def test_what_the_memo_holds_equals_a_fresh_computation(monkeypatch):
    processor = qwen()
    made = counting(monkeypatch, processor)
    pictures = [picture(*size) for size in SIZES]
    first = [consumed(processor, one) for one in pictures]
    again = [consumed(processor, one) for one in pictures]
    assert len(made) == len(SIZES)
    assert again == first == [consumed(qwen(), one) for one in pictures]


def test_the_memo_goes_by_pixels_and_not_by_file(monkeypatch):
    processor = qwen()
    made = counting(monkeypatch, processor)
    pixels = Pillow.fromarray(noise(6, 4))
    files = [encoded(pixels, kind) for kind in ("PNG", "BMP", "TIFF")]
    assert len({consumed(processor, one).name for one in files}) == len(made) == 1
    # The same bytes of pixels in another shape are another picture.
    consumed(processor, encoded(Pillow.fromarray(noise(6, 4).reshape(6, 4, 3))))
    assert len(made) == 2


def test_the_memo_keeps_the_latest_within_its_bytes(monkeypatch):
    item = consumed(qwen(), solid("red"))
    monkeypatch.setattr(processor_module, "MEMO_BYTES", 2 * len(item.data) + 1)
    processor = qwen()
    made = counting(monkeypatch, processor)
    for colour in ("red", "green", "red", "blue", "red"):  # green is the one used longest ago
        consumed(processor, solid(colour))
    assert len(made) == 3
    consumed(processor, solid("green"))
    assert len(made) == 4
    assert len(processor._memo._items) == 2


def test_an_item_larger_than_the_memo_is_made_and_not_kept(monkeypatch):
    monkeypatch.setattr(processor_module, "MEMO_BYTES", 10)
    processor = qwen()
    assert consumed(processor, solid("red")) == consumed(processor, solid("red"))
    assert not processor._memo._items
    assert processor._memo._room_bytes == 10
