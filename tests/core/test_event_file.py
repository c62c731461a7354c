import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.tensorflow_stub import errors
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as tensorboard_crc32c

from vario.core.event_file import EventFile, crc32c

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002")


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return events


def scalars(folder):
    events = read(folder)
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def file(tmp_path):
    opened = EventFile(tmp_path, started=1_700_000_000.5)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("content", "checksum"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_the_checksum_of_the_standard(content, checksum):
    assert crc32c(content) == checksum


@pytest.mark.parametrize("length", [1, 3, 1023, 1024, 1025, 1279, 1280, 1281, 70_001])
def test_the_checksum_of_long_and_short_contents_is_tensorboards(length):
    content = np.random.default_rng(length).bytes(length)
    assert crc32c(content) == tensorboard_crc32c(content)


def test_tensorboard_reads_every_tag_step_and_value(file, tmp_path):
    random = np.random.default_rng(0)
    tags = [f"vp0:layers.{n}.weight{'_long' * (n % 40)}/norm" for n in range(500)]
    values = random.normal(size=(3, 500)).astype(np.float32)
    for step in range(3):
        file.add_scalars(tags, values[step], step, time=1_700_000_001.0 + step)
    file.close()
    found = scalars(tmp_path)
    assert found == {tag: [(step, float(values[step, n])) for step in range(3)] for n, tag in enumerate(tags)}
    assert [event.wall_time for event in read(tmp_path).Scalars(tags[7])] == [1_700_000_001.0 + n for n in range(3)]


def test_what_is_not_finite_stays_what_it_is(file, tmp_path):
    file.add_scalars(["a", "b", "c", "d"], [np.nan, np.inf, -np.inf, 1e300], step=3, time=1.0)
    file.close()
    found = {tag: points[0][1] for tag, points in scalars(tmp_path).items()}
    assert np.isnan(found["a"])
    # Beyond what a float32 holds is infinite.
    assert (found["b"], found["c"], found["d"]) == (np.inf, -np.inf, np.inf)


def test_steps_of_every_length_are_read(file, tmp_path):
    steps = [0, 1, 127, 128, 16_383, 16_384, 2_097_152, 2**31, 2**40]
    for step in steps:
        file.add_scalars(["loss", "rate"], [step % 1000, 1.0], step, time=float(step))
    file.close()
    assert scalars(tmp_path)["loss"] == [(step, step % 1000) for step in steps]


@pytest.mark.parametrize("tag", ["", "a", "Größe/层.0", "x" * 127, "x" * 128, "x" * 20_000])
def test_tags_of_every_length_are_read(file, tmp_path, tag):
    file.add_scalars([tag, "other"], [1.5, 2.5], 1, 1.0)
    file.close()
    assert scalars(tmp_path) == {tag: [(1, 1.5)], "other": [(1, 2.5)]}


def test_different_tags_may_take_turns(file, tmp_path):
    sets = [tuple(f"{n}/{m}" for m in range(n)) for n in range(1, 50)]
    for step in range(2):
        for tags in sets:
            file.add_scalars(tags, np.arange(len(tags)) + step, step, 1.0)
    file.close()
    found = scalars(tmp_path)
    assert found["30/17"] == [(0, 17.0), (1, 18.0)]
    assert len(found) == sum(range(1, 50))


def test_each_event_holds_one_value_as_in_files_of_tensorboards_own_writer(file):
    file.add_scalars(["a", "b"], [1, 2], 5, 9.0)
    file.close()
    first, *events = LegacyEventFileLoader(str(file.path)).Load()
    assert first.file_version == "brain.Event:2"
    assert [(event.step, event.wall_time, len(event.summary.value)) for event in events] == [(5, 9.0, 1), (5, 9.0, 1)]


def test_a_picture_is_read_back_whole(file, tmp_path):
    png = PNG + np.random.default_rng(1).bytes(5000)
    file.add_image("0:head/adam_update", png, 640, 480, step=4, time=2.0)
    file.close()
    (image,) = read(tmp_path).Images("0:head/adam_update")
    assert (image.step, image.width, image.height, image.encoded_image_string) == (4, 640, 480, png)


def test_a_file_can_be_read_while_it_is_written(file, tmp_path):
    file.add_scalars(["loss"], [1.0], 0, 1.0)
    file.flush()
    events = read(tmp_path)
    assert len(events.Scalars("loss")) == 1
    file.add_scalars(["loss"], [0.5], 1, 2.0)
    file.flush()
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == [1.0, 0.5]


def test_the_reader_checks_the_checksums_that_are_written(file):
    tags = [f"layers.{n}/norm" for n in range(100)]
    file.add_scalars(tags, np.arange(100), 0, 1.0)
    file.add_image("picture", PNG * 50, 10, 10, 0, 1.0)
    file.close()
    whole = PyRecordReader_New(str(file.path))
    for _ in range(1 + 100 + 1):
        whole.GetNext()
    with pytest.raises(errors.OutOfRangeError):
        whole.GetNext()
    content = bytearray(file.path.read_bytes())
    content[-6] ^= 1  # inside the picture
    file.path.write_bytes(content)
    damaged = PyRecordReader_New(str(file.path))
    for _ in range(1 + 100):
        damaged.GetNext()
    with pytest.raises(errors.DataLossError):
        damaged.GetNext()


def test_two_files_of_one_moment_do_not_meet(tmp_path):
    first, second = EventFile(tmp_path, 5.0), EventFile(tmp_path, 5.0, suffix=".more")
    first.close()
    second.close()
    assert first.path != second.path
    assert second.path.name.endswith(".more")
    assert first.path.name.startswith("events.out.tfevents.0000000005.")


def test_nothing_to_add_adds_nothing(file):
    before = file.path.stat().st_size
    file.add_scalars([], [], 1, 1.0)
    file.flush()
    length = file.path.stat().st_size
    file.add_scalars([], [], 2, 1.0)
    file.flush()
    assert before <= length == file.path.stat().st_size


def test_tags_and_values_must_be_equally_many(file):
    with pytest.raises(ValueError, match="2 tags for 1 values"):
        file.add_scalars(["a", "b"], [1.0], 0, 0.0)


def test_files_of_one_second_are_in_the_order_in_which_they_were_opened(tmp_path):
    opened = [EventFile(tmp_path, started=1_700_000_000.5) for _ in range(12)]
    for file in opened:
        file.close()
    assert sorted(file.path for file in opened) == [file.path for file in opened]
