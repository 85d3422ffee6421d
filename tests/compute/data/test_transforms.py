"""Operations on rows: known answers, and one interface for all."""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from io import BytesIO
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from coterie.compute.data import ArraySource, Context, Dataset, RandomStream, Transform, transforms
from coterie.compute.data.stream import BatchStream
from coterie.compute.data.transforms import augment, images, noise, numbers, pitch, sound, text
from coterie.compute.ir import NDArray
from coterie.errors import ArgumentValueError, CoterieError, DataError
from tests.compute.data.pipelines import same

RNG = np.random.default_rng(2)
CLASSES = [getattr(transforms, name) for name in transforms.__all__]
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def context(position: int = 0) -> Context:
    return Context(RandomStream(0, 0, 0, position))


def encoded(pixels: NDArray, kind: str = "PNG") -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


# Each with a value that it takes: what every operation has to be is asked of all of them.
WORKING: list[tuple[Transform, Any]] = [
    (transforms.DecodeImage(), encoded(PIXELS)),
    (transforms.Resize(8, 3), PIXELS),
    (transforms.CenterCrop(2, 2), PIXELS),
    (transforms.ChannelsFirst(), PIXELS),
    (transforms.RandomCrop(3, 3, padding=1), PIXELS),
    (transforms.RandomFlip(), PIXELS),
    (transforms.RandomBrightness(0.4), PIXELS),
    (transforms.RandomContrast(0.4), PIXELS),
    (transforms.RandomErase(3), PIXELS),
    (transforms.Normalise((0.5, 1, 2), 2.0), PIXELS),
    (transforms.Cast("float32"), PIXELS),
    (transforms.OneHot(4), 3),
    (transforms.Pad(5, -1), np.arange(3)),
    (transforms.Characters("abc"), "cab!"),
    (transforms.Words(("the", "cat")), "The cat sat"),
    (transforms.Spectrogram(8, 4), np.arange(20.0)),
    (transforms.Decibels(), np.array([1.0, 100.0, 0.0])),
    (transforms.RandomGain(6.0), np.arange(4.0)),
    (transforms.RandomRotate(30.0), PIXELS),
    (transforms.RandomNoise(2.0), PIXELS),
    (transforms.PitchShift(3.0), np.sin(np.arange(200.0) / 3)),
    (transforms.RandomPitch(3.0), np.sin(np.arange(200.0) / 3)),
    (transforms.RandomMask(9, 0.5), np.arange(1, 9)),
]


@pytest.mark.capability("F14")
def test_every_operation_is_listed_and_tried() -> None:
    assert {type(operation) for operation, _ in WORKING} == set(CLASSES)
    defined = {
        value
        for module in (augment, images, noise, numbers, pitch, sound, text)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Transform) and value is not Transform
    }
    assert defined == set(CLASSES)


@pytest.mark.capability("F14")
@pytest.mark.parametrize("number", range(len(WORKING)), ids=[type(operation).__name__ for operation, _ in WORKING])
def test_an_operation_keeps_the_one_interface(number: int) -> None:
    operation, value = WORKING[number]
    kind: Any = type(operation)
    assert isinstance(operation, Transform) and kind.__final__
    assert kind.__dataclass_params__.frozen and (inspect.getdoc(kind) or "").strip()
    assert list(inspect.signature(kind.apply).parameters) == ["self", "value", "context"]
    assert str(operation) == repr(operation) and kind.__name__ in repr(operation)
    before: Any = copy.deepcopy(value)
    first: Any = operation.apply(value, context())
    assert type(first) is np.ndarray and np.array_equal(first, operation.apply(before, context()))
    rebuilt: Any = dataclasses.replace(cast(Any, operation))
    assert rebuilt == operation and np.array_equal(rebuilt.apply(before, context()), first)
    others = [operation.apply(before, context(position)) for position in range(1, 20)]
    assert any(not np.array_equal(first, other) for other in others) is kind.__name__.startswith("Random")
    for wrong in (None, object(), {"a": 1}):
        with pytest.raises(CoterieError):
            operation.apply(wrong, context())


KNOWN: list[tuple[Transform, Any, Any]] = [
    (transforms.CenterCrop(2, 4), PIXELS, PIXELS[1:3, 1:5]),
    (transforms.ChannelsFirst(), PIXELS, np.moveaxis(PIXELS, 2, 0)),
    (transforms.Resize(4, 6), PIXELS, PIXELS),
    (transforms.Resize(1, 1), PIXELS[:2, :2], [[[10, 12, 12]]]),  # 10.5, 11.5, 12.5 round to even
    (transforms.Resize(1, 4), np.array([[[0.0], [8.0]]]), [[[0.0], [2.0], [6.0], [8.0]]]),
    (transforms.RandomFlip(1.0), PIXELS, PIXELS[:, ::-1]),
    (transforms.RandomFlip(1.0, vertical=True), PIXELS, PIXELS[::-1]),
    (transforms.RandomFlip(0.0), PIXELS, PIXELS),
    (transforms.RandomBrightness(0.0), PIXELS, PIXELS),
    (transforms.RandomContrast(0.0), PIXELS, PIXELS),
    (transforms.RandomCrop(4, 6), PIXELS, PIXELS),
    (transforms.RandomErase(50), PIXELS, np.zeros_like(PIXELS)),
    (transforms.Normalise((1.0, 2.0), (2.0, 4.0)), np.array([[1, 2], [5, 10]]), [[0.0, 0.0], [2.0, 2.0]]),
    (transforms.OneHot(3), np.int64(1), [0.0, 1.0, 0.0]),
    (transforms.Pad(4), np.array([1.0, 2.0]), [1.0, 2.0, 0.0, 0.0]),
    (transforms.Pad(2), np.arange(6).reshape(3, 2), [[0, 1], [2, 3]]),
    (transforms.Characters("abc"), "cab!", [3, 1, 2, 0]),
    (transforms.Words(("the", "cat")), "The  cat\tsat", [1, 2, 0]),
    (transforms.Words(("the", "cat"), lower=False), "The cat", [0, 2]),
    (transforms.Decibels(30.0), np.array([1.0, 100.0, 1e-9]), [0.0, 20.0, -10.0]),
    (transforms.RandomGain(0.0), np.array([1.0, -2.0]), [1.0, -2.0]),
    (transforms.RandomRotate(0.0), PIXELS, PIXELS),
    (transforms.RandomNoise(0.0), PIXELS, PIXELS),
    (transforms.RandomNoise(0.5, relative=True), np.zeros(4, np.float32), np.zeros(4)),
    (transforms.PitchShift(0.0), np.array([1.0, -2.0]), [1.0, -2.0]),
    (transforms.Words(("cat",), without=("the", "a")), "The cat on a mat", [1, 0, 0]),
    (transforms.Words(("The",), lower=False, without=("the",)), "The the", [1]),
    (transforms.RandomMask(9, 1.0), np.array([3, 0, 4]), [9, 0, 9]),
    (transforms.RandomMask(9, 1.0, keep=(3, 4)), np.array([3, 0, 4]), [3, 9, 4]),
    (transforms.RandomMask(9, 0.0), np.array([3, 0, 4]), [3, 0, 4]),
]


@pytest.mark.capability("F6")
@pytest.mark.parametrize(
    "number", range(len(KNOWN)), ids=[f"{n}-{type(case[0]).__name__}" for n, case in enumerate(KNOWN)]
)
def test_known_answers(number: int) -> None:
    operation, value, expected = KNOWN[number]
    found = operation.apply(value, context())
    np.testing.assert_array_equal(found, np.asarray(expected, found.dtype))


@pytest.mark.capability("F6")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize("lies", ["straight", "mirrored", "upside down", "cut out", "channels first"])
def test_an_image_is_changed_alike_however_it_lies_in_memory(dtype: str, channels: int, lies: str) -> None:
    whole = RNG.integers(0, 256, (9, 11, channels)).astype(dtype)
    turned = np.ascontiguousarray(whole.transpose(2, 0, 1)).transpose(1, 2, 0)
    views = {"straight": whole, "mirrored": whole[:, ::-1], "upside down": whole[::-1], "cut out": whole[2:7, 1:9]}
    image = views.get(lies, turned)
    before, plain = image.copy(), np.ascontiguousarray(image)
    mean, std = np.arange(channels, dtype=np.float32) + 0.3, np.arange(channels, dtype=np.float32) + 1.7
    normalised = transforms.Normalise(tuple(mean.tolist()), tuple(std.tolist())).apply(image, context())
    assert normalised.dtype == np.float32 and not np.shares_memory(normalised, image)
    np.testing.assert_array_equal(normalised, (plain.astype(np.float32) - mean) / std)
    for position in range(4):  # brighter and darker
        for operation in (transforms.RandomBrightness(0.9), transforms.RandomContrast(0.9)):
            found = operation.apply(image, context(position))
            assert found.dtype == image.dtype
            np.testing.assert_array_equal(found, operation.apply(plain, context(position)))
    factor = np.float32(context().random.uniform(0.1, 1.9))
    if image.dtype.kind != "f":
        limits = np.iinfo(image.dtype)
        wanted = np.clip(np.rint(plain.astype(np.float32) * factor), limits.min, limits.max)
        np.testing.assert_array_equal(transforms.RandomBrightness(0.9).apply(image, context()), wanted)
    np.testing.assert_array_equal(image, before)


@pytest.mark.capability("F6")
def test_a_tone_is_where_it_sounds() -> None:
    tone = np.sin(2 * np.pi * 5 * np.arange(512) / 64)
    power = transforms.Spectrogram(64, 32).apply(tone, context())
    assert power.shape == (15, 33) and power.dtype == np.float32
    assert (power.argmax(1) == 5).all()
    # A Hann window halves the amplitude: |X(5)| = 64 / 2 / 2.
    np.testing.assert_allclose(power[:, 5], 256, rtol=1e-6)


@pytest.mark.capability("F6")
@pytest.mark.parametrize("semitones", [-12.0, -5.0, -1.0, 2.0, 7.0, 12.0])
@pytest.mark.parametrize("tone", [20, 45, 100])
def test_a_shifted_tone_is_where_it_should_sound(semitones: float, tone: int) -> None:
    """``tone`` waves in 1024 samples become 2^(semitones / 12) times as many, in a sound of the same length."""
    samples = np.sin(2 * np.pi * tone * np.arange(8192) / 1024).astype(np.float32)
    found = transforms.PitchShift(semitones).apply(samples, context())
    assert found.shape == samples.shape and found.dtype == np.float32
    heard: NDArray = np.abs(np.fft.rfft(found[1024:7168] * np.hanning(6144), n=1 << 16))
    assert heard.argmax() * 1024 / (1 << 16) == pytest.approx(tone * 2 ** (semitones / 12), rel=0.01)
    loud = [float(np.sqrt(np.mean(each[1024:7168] ** 2))) for each in (found, samples)]
    assert 0.75 < loud[0] / loud[1] < 1.3


@pytest.mark.capability("F6")
def test_random_pitch_is_within_its_range_and_another_for_every_row() -> None:
    samples = np.sin(2 * np.pi * 40 * np.arange(8192) / 1024)
    tones = [
        np.abs(np.fft.rfft(transforms.RandomPitch(4.0).apply(samples, context(row))[1024:7168], n=1 << 16)).argmax()
        / 64
        for row in range(12)
    ]
    assert 40 * 2 ** (-4 / 12) * 0.98 < min(tones) < 37 and 43 < max(tones) < 40 * 2 ** (4 / 12) * 1.02


@pytest.mark.capability("F6")
@pytest.mark.parametrize(("dtype", "relative"), [("float32", False), ("float64", True), ("int16", False)])
def test_noise_has_the_deviation_that_is_asked_for(dtype: str, relative: bool) -> None:
    value = (1000 * np.sin(np.arange(20000) / 7)).astype(dtype)
    deviation = 0.1 if relative else 50.0
    added = transforms.RandomNoise(deviation, relative).apply(value, context()).astype(np.float64) - value
    wanted = deviation * (np.sqrt(np.mean(value.astype(np.float64) ** 2)) if relative else 1.0)
    assert added.std() == pytest.approx(wanted, rel=0.03) and abs(added.mean()) < 4 * wanted / np.sqrt(20000)
    # As many beyond two deviations as a normal law has.
    assert np.mean(np.abs(added) > 2 * wanted) == pytest.approx(0.0455, abs=0.006)


@pytest.mark.capability("F6")
def test_noise_keeps_integers_in_their_range() -> None:
    white = np.full((20, 20, 3), 250, np.uint8)
    found = transforms.RandomNoise(40.0).apply(white, context())
    assert found.dtype == np.uint8 and found.max() == 255 and 30 < found.min() < 220


@pytest.mark.capability("F6")
def test_an_image_that_is_turned_and_turned_back_is_itself_within() -> None:
    """Turned by a quarter it is what ``rot90`` makes; a disc with a smooth middle comes back from any angle."""
    turned = augment._turned(PIXELS[:, :4], 1.0, 0.0)  # pyright: ignore[reportPrivateUsage]
    np.testing.assert_array_equal(turned, np.rot90(PIXELS[:, :4]))
    y, x = np.mgrid[-20:21, -20:21]
    hill = np.exp(-((x - 4) ** 2 + (y + 3) ** 2) / 40)[..., None]
    operation = transforms.RandomRotate(60.0)
    for row in range(5):
        angle = np.deg2rad(context(row).random.uniform(-60.0, 60.0))
        found = operation.apply(hill, context(row))
        back = augment._turned(found, -np.sin(angle), np.cos(angle))  # pyright: ignore[reportPrivateUsage]
        np.testing.assert_allclose(back, hill, atol=0.05)
        assert abs(angle) < 0.05 or np.abs(found - hill).max() > 0.05


@pytest.mark.capability("F6")
def test_masks_come_in_the_shares_that_are_asked_for() -> None:
    ids = np.tile(np.arange(1, 101), 300)
    plain = transforms.RandomMask(999, 0.15).apply(ids, context())
    assert np.mean(plain == 999) == pytest.approx(0.15, abs=0.01) and set(plain[plain != ids]) == {999}
    mixed = transforms.RandomMask(999, 0.5, words=100).apply(ids, context())
    assert mixed.dtype == ids.dtype
    assert np.mean(mixed == 999) == pytest.approx(0.5 * 0.8, abs=0.015)
    others = mixed[(mixed != 999) & (mixed != ids)]
    assert len(others) / len(ids) == pytest.approx(0.5 * 0.1 * 0.99, abs=0.006)
    assert others.min() >= 1 and others.max() <= 100 and len(set(others)) == 100


@pytest.mark.capability("F6")
def test_masked_text_and_noisy_sound_are_the_same_whoever_makes_them() -> None:
    rows: dict[str, Any] = {
        "said": ["the cat sat", "a cat", "the mat"] * 4,
        "heard": np.sin(np.arange(12 * 300).reshape(12, 300) / 5),
    }
    batches = (
        Dataset.of(ArraySource(rows))
        .map([transforms.Words(("cat", "sat", "mat"), without=("the", "a")), transforms.Pad(3)], "said", outputs="ids")
        .map(transforms.RandomMask(4, 0.5), "ids", outputs="masked")
        .map([transforms.RandomPitch(2.0), transforms.RandomNoise(0.1, relative=True)], "heard")
        .batch(12)
        .epochs(2)
    )
    same(batches, batches.workers(4))
    first, second = batches
    assert first["ids"][0].tolist() == [1, 2, 0] and (first["masked"] == 4).any() and (first["masked"][:, 2] != 4).all()
    assert not np.array_equal(first["masked"], second["masked"]) and not np.array_equal(first["heard"], second["heard"])


@pytest.mark.capability("F6")
@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "TIFF", "WEBP"])
def test_files_are_decoded(kind: str) -> None:
    grey = RNG.integers(0, 256, (5, 7), np.uint8)
    found = transforms.DecodeImage("L").apply(encoded(grey, kind), context())
    assert found.shape == (5, 7, 1) and found.dtype == np.uint8
    if kind != "WEBP":  # which loses a little
        assert (found[..., 0] == grey).all()
    assert transforms.DecodeImage(size=(3, 2)).apply(encoded(PIXELS, kind), context()).shape == (3, 2, 3)


@pytest.mark.parametrize("cut", [0, 1, 20, -30])
def test_an_image_that_does_not_decode_is_named_with_its_file(cut: int) -> None:
    whole = encoded(RNG.integers(0, 256, (20, 20, 3), np.uint8))
    files = [whole, whole[:cut], whole]
    dataset = Dataset.of(ArraySource({"image": files, "path": ["cats/1.png", "cats/2.png", "cats/3.png"]}))
    decoded = dataset.map(transforms.DecodeImage(), "image")
    assert len(next(iter(decoded))["image"]) == 20
    with pytest.raises(DataError, match=r"DecodeImage.* failed at row 2 \(cats/2\.png\): these \d+ bytes") as caught:
        list(decoded)
    assert caught.value.reason == "image_undecodable" and caught.value.details == {"row": 2}
    # No object of Pillow's in memory, and whole sentences.
    assert " at 0x" not in caught.value.message and caught.value.message.endswith(".")
    left = dataset.filter(lambda path: path != "cats/2.png", "path").map(transforms.DecodeImage(), "image")
    assert len(list(left)) == 2


def test_a_picture_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match="exceeds limit of 200 pixels"):
        transforms.DecodeImage().apply(encoded(np.zeros((20, 20), np.uint8)), context())


@pytest.mark.capability("F6")
def test_augmented_images_are_the_same_whoever_makes_them_and_new_in_every_pass() -> None:
    files = [encoded(RNG.integers(0, 256, (12, 14, 3), np.uint8), "JPEG") for _ in range(12)]
    batches = (
        Dataset.of(ArraySource({"image": files, "label": np.arange(12)})).shuffle(1)
        .map([
            transforms.DecodeImage(), transforms.RandomCrop(8, 8, padding=2), transforms.RandomFlip(),
            transforms.RandomBrightness(0.2), transforms.RandomErase(3),
            transforms.Normalise(127.5, 127.5), transforms.ChannelsFirst(),
        ], "image")
        .batch(12).epochs(2)
    )  # fmt: skip
    same(batches, batches.workers(4))
    first, second = batches
    assert first["image"].shape == (12, 3, 8, 8) and first["image"].dtype == np.float32
    again = second["image"][np.argsort(second["label"])] == first["image"][np.argsort(first["label"])]
    assert not again.all((1, 2, 3)).any()
    stream = batches.stream()
    assert isinstance(stream, BatchStream)
    next(stream)
    resumed = batches.workers(3).stream()
    resumed.restore(stream.state())
    assert next(resumed)["image"].tobytes() == second["image"].tobytes()


@pytest.mark.capability("F6")
def test_text_becomes_batches_of_numbers() -> None:
    rows = Dataset.of(ArraySource({"said": ["a cat", "the cat sat", ""], "y": np.arange(3)}))
    batch = rows.map([transforms.Words(("cat", "sat")), transforms.Pad(3)], "said", outputs="ids").batch(3).first()
    assert batch["ids"].tolist() == [[0, 1, 0], [0, 1, 2], [0, 0, 0]] and batch["said"][1] == "the cat sat"


BAD_SETTINGS: list[Callable[[], Transform]] = [
    lambda: transforms.DecodeImage("CMYK"),  # type: ignore[reportArgumentType]
    lambda: transforms.DecodeImage(size=(0, 3)),
    lambda: transforms.Resize(0, 1),
    lambda: transforms.CenterCrop(0, 1),
    lambda: transforms.RandomCrop(1, 0),
    lambda: transforms.RandomCrop(1, 1, -1),
    lambda: transforms.RandomFlip(1.5),
    lambda: transforms.RandomBrightness(-1),
    lambda: transforms.RandomContrast(2),
    lambda: transforms.RandomErase(0),
    lambda: transforms.Normalise(0.0, 0.0),
    lambda: transforms.Cast("str"),
    lambda: transforms.OneHot(0),
    lambda: transforms.Pad(0),
    lambda: transforms.Characters("aa"),
    lambda: transforms.Words(("a", "a")),
    lambda: transforms.Spectrogram(1),
    lambda: transforms.Decibels(0),
    lambda: transforms.RandomGain(-1),
    lambda: transforms.RandomRotate(181),
    lambda: transforms.RandomNoise(-1),
    lambda: transforms.RandomNoise(float("nan")),
    lambda: transforms.PitchShift(25),
    lambda: transforms.RandomPitch(-1),
    lambda: transforms.RandomMask(1, 1.5),
    lambda: transforms.RandomMask(1, 0.5, words=0),
    lambda: transforms.Words(("a",), without=("a",)),
]


@pytest.mark.parametrize("number", range(len(BAD_SETTINGS)))
def test_settings_that_make_no_sense_are_refused(number: int) -> None:
    with pytest.raises(ArgumentValueError):
        BAD_SETTINGS[number]()


BAD_VALUES: list[tuple[Transform, Any, str]] = [
    (transforms.CenterCrop(5, 5), PIXELS, "smaller than the 5 × 5"),
    (transforms.RandomCrop(7, 7, 1), PIXELS, "6 × 8 with its padding"),
    (transforms.Resize(2, 2), PIXELS[0], r"an image is an array \[H, W, C\], got uint8\[6, 3\]"),
    (transforms.OneHot(3), 3, "3 is no class of 0 … 2"),
    (transforms.OneHot(3), 1.0, "no class"),
    (transforms.Spectrogram(8), np.zeros(7), "7 samples, fewer than the 8"),
    (transforms.Spectrogram(2), np.zeros((7, 2)), r"a sound is an array \[N\]"),
    (transforms.Pad(3), 5, "along an axis"),
    (transforms.Characters("a"), b"a", "takes text"),
    (transforms.DecodeImage(), "a.png", "bytes of a file"),
    (transforms.RandomGain(1), np.arange(3), "float dtype"),
    (transforms.PitchShift(1), np.arange(3), "float dtype"),
    (transforms.RandomPitch(1), np.zeros((3, 2)), r"a sound is an array \[N\]"),
    (transforms.RandomMask(1), np.zeros(3), "whole numbers"),
    (transforms.RandomNoise(1.0), np.zeros(3, bool), "integers and floats"),
]


@pytest.mark.parametrize("number", range(len(BAD_VALUES)))
def test_values_that_cannot_be_taken_are_refused(number: int) -> None:
    operation, value, said = BAD_VALUES[number]
    with pytest.raises(CoterieError, match=said):
        operation.apply(value, context())
