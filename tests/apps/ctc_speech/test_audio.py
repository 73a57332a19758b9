"""Audio files as samples: formats, rates, channels, and what is refused."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from linattn_lab.memory import peak_memory
from speech.audio import change_speed, read_audio
from speech.sources import Ark, Command, File, Member
from tests.apps.ctc_speech.conftest import tone


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.wav", {}),
        ("a.flac", {}),
        ("a.sph", {"format": "NIST", "subtype": "PCM_16"}),
        (os.fsdecode(b"a\xff.wav"), {}),
    ],
)
def test_formats_without_loss_under_any_name(
    tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    with (tmp_path / name).open("wb") as file:
        soundfile.write(file, tone(440, 0.5), 16_000, **{"format": name[-4:].strip("."), **options})
    np.testing.assert_allclose(read_audio(File(tmp_path / name)), tone(440, 0.5), atol=1 / 32_000)


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_other_rates_are_resampled(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 0.5, rate), rate, subtype="FLOAT")
    samples = read_audio(File(path))
    assert len(samples) == 8_000
    middle = slice(1_000, -1_000)  # a burst that begins at once rings
    np.testing.assert_allclose(samples[middle], tone(440, 0.5)[middle], atol=2e-3)


def test_a_speed_changes_length_and_pitch() -> None:
    faster, middle = change_speed(tone(400, 1.1), 1.1), slice(1_000, -1_000)
    assert len(faster) == 16_000
    np.testing.assert_allclose(faster[middle], tone(440, 1.0)[middle], atol=2e-3)


def test_channels_are_averaged_unless_they_cancel(tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    both = np.stack([tone(440, 0.5), np.zeros(8_000, np.float32)], axis=1)
    soundfile.write(path, both, 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(File(path)), tone(440, 0.5) / 2, atol=1e-6)
    soundfile.write(path, np.stack([tone(440, 0.5), -0.9 * tone(440, 0.5)], axis=1), 16_000)
    with pytest.raises(ValueError, match=r"stereo\.wav.*cancel"):
        read_audio(File(path))
    soundfile.write(path, np.zeros((8_000, 2)), 16_000)
    assert not read_audio(File(path)).any()


def test_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 1.0), 16_000, subtype="FLOAT")
    for start, end, samples in ((0.25, 0.5, slice(4_000, 8_000)), (0.5, 1.4, slice(8_000, None))):
        part = read_audio(File(path), start=start, end=end)
        np.testing.assert_allclose(part, tone(440, 1.0)[samples], atol=1e-6)
    for start, end in ((2.0, 3.0), (0.5, 1.6), (-0.1, 0.5), (0.5, 0.4), (1e308, None)):
        with pytest.raises(ValueError, match=r"a\.wav"):
            read_audio(File(path), start=start, end=end)


def test_arks_and_commands_give_what_files_give(tmp_path: Path) -> None:
    wav, ark = tmp_path / "a.wav", tmp_path / "a.ark"
    soundfile.write(wav, tone(440, 0.5), 16_000)
    ark.write_bytes(b"one " + wav.read_bytes() + b"two " + wav.read_bytes())
    for source in (Ark(ark, 4), Ark(ark, 8 + wav.stat().st_size), Command(f"cat {wav}")):
        assert np.array_equal(read_audio(source), read_audio(File(wav)))
    with pytest.raises(ValueError, match=r"a\.ark"):
        read_audio(Ark(ark, 0))
    for unknown in (b"\0" * 4, b"\xff" * 4):  # its samples would be followed by those of "two"
        ark.write_bytes(ark.read_bytes()[:8] + unknown + ark.read_bytes()[12:])
        with pytest.raises(ValueError, match=r"a\.ark:4: expected a WAV file that states"):
            read_audio(Ark(ark, 4))
    with pytest.raises(ValueError, match=r"a\.ark"):
        read_audio(Ark(ark, 10**17))
    with pytest.raises(ValueError, match="exit 3"):
        read_audio(Command("exit 3"))


@pytest.mark.parametrize("format", ["WAV", "NIST", "FLAC", "OGG"])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, format: str) -> None:
    path, archive = tmp_path / f"a.{format}", tmp_path / "a.tar"
    soundfile.write(path, tone(440, 0.5), 16_000, format=format)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with tarfile.open(archive, "w") as tar:
        tar.add(path, path.name)
    for source in (File(path), Member(archive, path.name)):
        with pytest.raises(ValueError, match=path.name):
            read_audio(source)


def chunk(name: bytes, content: bytes, size: int | None = None, padding: bytes = b"\0") -> bytes:
    """A chunk of a WAV file, with another size in its header if one is given."""
    stated = len(content) if size is None else size
    return name + stated.to_bytes(4, "little") + content + padding * (len(content) % 2)


LONG, ODD = chunk(b"JUNK", bytes(5_000)), chunk(b"LIST", b"abc")
UNPADDED = chunk(b"LIST", b"abc", padding=b"")
# Chunks before the format, before the samples, and after the samples.
CHUNKS = [(b"", b"", b""), (LONG, ODD, b""), (ODD, LONG, b""), (UNPADDED, LONG, b"")]


@pytest.mark.parametrize("size", [0, 0x7FFF_FFFF, 0xFFFF_FFFF, None])
@pytest.mark.parametrize("others", [*CHUNKS, (b"", UNPADDED, ODD), (LONG, b"", LONG)])
def test_chunks_of_a_wav_have_any_length_and_a_streamed_one_ends_with_its_file(
    tmp_path: Path, size: int | None, others: tuple[bytes, bytes, bytes]
) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 0.5), 16_000)
    written = path.read_bytes()
    form, data = written[12:36], written[44:]
    first, between, last = others
    last = b"" if size is not None else last  # nothing can follow samples without an end
    path.write_bytes(
        chunk(b"RIFF", b"WAVE" + first + form + between + chunk(b"data", data, size) + last, size)
    )
    np.testing.assert_allclose(read_audio(File(path)), tone(440, 0.5), atol=1 / 32_000)
    part = read_audio(File(path), start=0.25)
    np.testing.assert_allclose(part, tone(440, 0.5)[4_000:], atol=1 / 32_000)


SEQUENTIAL = [
    *(("WAV", subtype) for subtype in ("GSM610", "G721_32", "IMA_ADPCM", "NMS_ADPCM_16")),
    *(("AU", subtype) for subtype in ("G721_32", "G723_24", "G723_40")),
    ("AIFF", "GSM610"),
    ("W64", "GSM610"),
]


@pytest.mark.parametrize(("format", "subtype"), SEQUENTIAL)
def test_files_that_cannot_seek_are_read_whole_and_in_part(
    tmp_path: Path, format: str, subtype: str
) -> None:
    path = tmp_path / "a"
    soundfile.write(path, tone(440, 1.0), 16_000, format=format, subtype=subtype)
    whole = read_audio(File(path))
    assert np.corrcoef(whole[:16_000], tone(440, 1.0))[0, 1] > 0.9
    assert np.array_equal(read_audio(File(path), start=0.25, end=0.5), whole[4_000:8_000])


def _claim_too_much(path: Path) -> None:
    soundfile.write(path, tone(440, 0.5), 16_000, format="FLAC")
    content = bytearray(path.read_bytes())
    content[22:26] = b"\xff" * 4  # the lower bits of the number of samples
    path.write_bytes(content)


def _float_samples(samples: np.ndarray) -> Callable[[Path], object]:
    return lambda path: soundfile.write(path, samples, 16_000, subtype="FLOAT")


@pytest.mark.parametrize(
    "write",
    [
        _float_samples(np.zeros(0, np.float32)),
        _float_samples(np.zeros(399, np.float32)),
        *(_float_samples(np.full((800, 2), x, np.float32)) for x in (np.nan, 9.0, 3e38)),
        lambda path: soundfile.write(path, tone(440, 0.5), 1),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"RIFF\0\0\0\0WAVE"),
        lambda path: path.write_bytes(b"no audio at all" * 100),
        _claim_too_much,
    ],
)
def test_audio_that_cannot_be_used_is_named(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    write(tmp_path / "a.wav")
    with pytest.raises(ValueError, match=r"a\.wav"):
        read_audio(File(tmp_path / "a.wav"))


def test_samples_of_16_bits_cast_to_float_are_refused_with_what_to_do(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440, 0.5) * 32_768, 16_000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"a\.wav: expected samples in -1\.\.1.* by 32,768"):
        read_audio(File(tmp_path / "a.wav"))


def test_hours_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "a.flac", np.zeros(16_000), 8_000)
    monkeypatch.setattr("speech.audio.MOST_SAMPLES", 20_000)
    assert len(read_audio(File(tmp_path / "a.flac"), end=1.0)) == 16_000
    with pytest.raises(ValueError, match=r"a\.flac: expected at most 20,000 samples"):
        read_audio(File(tmp_path / "a.flac"))


def test_other_files_are_named(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440, 0.5), 16_000)
    samples = read_audio(File(tmp_path / "a.wav"))
    raw = (tmp_path / "a.wav").rename(tmp_path / "a.raw")
    np.testing.assert_array_equal(read_audio(File(raw)), samples)
    raw.write_bytes(raw.read_bytes()[44:])  # without a header
    with pytest.raises(ValueError, match=r"a\.raw"):
        read_audio(File(raw))
    fields = "sample_rate -i 16000\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    (tmp_path / "a.sph").write_bytes(f"NIST_1A\n   1024\n{fields}".ljust(2_000).encode())
    with pytest.raises(ValueError, match=r"a\.sph.* sph2pipe"):
        read_audio(File(tmp_path / "a.sph"))
    with pytest.raises(FileNotFoundError, match=r"none\.wav"):
        read_audio(File(tmp_path / "none.wav"))
    (tmp_path / "a.tar").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"a\.tar"):
        read_audio(Member(tmp_path / "a.tar", "x.wav"))


def long_names() -> bytes:
    """Headers of GNU tar that each announce a long name for the next."""
    item = tarfile.TarInfo("././@LongLink")
    item.type, item.size = tarfile.GNUTYPE_LONGNAME, 1
    return (item.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 5000


def with_records(records: dict[str, str]) -> bytes:
    """An archive of one file with records of POSIX tar."""
    item = tarfile.TarInfo("a.wav")
    item.pax_headers = records
    return item.tobuf(tarfile.PAX_FORMAT) + bytes(10_240)


ARCHIVES = {
    "thousands of long names": long_names,
    "a size of 20 digits": lambda: with_records({"size": "9" * 20}),
    "a negative size": lambda: with_records({"size": "-512"}),
    "a size that is no number": lambda: with_records({"size": "x"}),
    "a map of nothing": lambda: with_records({"GNU.sparse.map": "x,y", "GNU.sparse.size": "1"}),
    "half a map": lambda: with_records({"GNU.sparse.map": "0", "GNU.sparse.size": "z"}),
    "a map in the content": lambda: with_records({
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 30,
    }),
    "sparse numbers": lambda: with_records({"GNU.sparse.offset": "a", "GNU.sparse.size": "b"}),
}  # fmt: skip


@pytest.mark.parametrize("content", ARCHIVES)
def test_an_archive_of_other_headers_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(ARCHIVES[content]())
    with pytest.raises(ValueError, match=rf"^{path}(, a\.wav)?: expected") as refusal:
        read_audio(Member(path, "a.wav"))
    assert str(refusal.value).isprintable()


def test_an_archive_takes_no_more_memory_than_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = tarfile.TarInfo("a.wav")
    sparse.size, claimed = 1, 1 << 28
    sparse.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(claimed)}
    for name, mode in (("a.tar", "w"), ("a.tar.xz", "w:xz")):
        with tarfile.open(tmp_path / name, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            tar.addfile(sparse, io.BytesIO(b"x"))

    def refuse() -> None:
        for archive in tmp_path.iterdir():
            with pytest.raises(ValueError, match=rf"^{archive}: expected a member a\.wav"):
                read_audio(Member(archive, "a.wav"))

    assert peak_memory(torch.device("cpu"), refuse)[1] < claimed / 4
    monkeypatch.setattr("speech.sources.LARGEST", 5_000)
    with tarfile.open(tmp_path / "zeros.tar.xz", "w:xz") as tar:
        zeros = tarfile.TarInfo("a.wav")
        zeros.size = 1_000_000
        tar.addfile(zeros, io.BytesIO(bytes(zeros.size)))
    with pytest.raises(ValueError, match="at most 5000 bytes"):
        read_audio(Member(tmp_path / "zeros.tar.xz", "a.wav"))
    with (tmp_path / "long.ark").open("wb") as file:
        file.write(b"RIFF" + b"\xff" * 4)
        file.truncate(9_000)
    with pytest.raises(ValueError, match=r"long\.ark:0: expected at most 5000 bytes"):
        read_audio(Ark(tmp_path / "long.ark", 0))
