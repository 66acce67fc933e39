"""Reading GGUF files: round trips, errors that name the place, and every number format."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from pasta_jax.errors import PastaError
from pasta_jax.files import packages
from pasta_jax.files.gguf import FORMATS, GGUF, dequantize
from tests.helpers.gguf_writer import write_gguf
from tests.helpers.requires import requires_gemma, requires_smollm2

MATRIX = np.arange(6, dtype="<f4").reshape(2, 3)
METADATA = {
    "general.architecture": "llama",
    "general.quantized": True,
    "layers": 3,
    "small": np.int8(-3),
    "large": np.uint64(2**40),
    "eps": np.float32(1e-6),
    "exact": np.float64(0.1),
    "tokens": ["<s>", "▁a", "", "\0"],
    "none": [],
    "scores": np.array([0.0, -1.5, 2.0], "<f4"),
    "types": np.array([3, 1, 1], "<i4"),
}
Q8_0 = np.array([0.5], "<f2").tobytes() + np.arange(-16, 16, dtype="i1").tobytes()
TENSORS = {
    "plain": ((2, 3), "F32", MATRIX.tobytes()),
    "half": ((3,), "F16", np.array([1, -2, 0.5], "<f2").tobytes()),
    "quantized": ((2, 32), "Q8_0", Q8_0 * 2),
}


@pytest.fixture
def file(tmp_path):
    """A function that writes bytes to a GGUF file and returns its path."""

    def write(content: bytes):
        path = tmp_path / "small.gguf"
        path.write_bytes(content)
        return path

    return write


def open_all(path) -> GGUF:
    gguf = GGUF.open(path)
    for name in gguf.tensors:
        gguf.read(name)
    return gguf


def refusal(path) -> str:
    with pytest.raises(PastaError) as caught:
        open_all(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert "; " in message  # the fix
    return message


def test_parts_of_a_split_file_are_named(file):
    for number in range(2):
        parts = {"split.count": 2, "split.no": number}
        message = refusal(file(write_gguf(METADATA | parts, TENSORS)))
        assert f"part {number + 1} of 2; join them with" in message


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_metadata_and_tensors_round_trip(file, version, alignment):
    metadata = METADATA | {"general.alignment": alignment}
    gguf = GGUF.open(file(write_gguf(metadata, TENSORS, version, alignment)))
    assert gguf.metadata.keys() == metadata.keys()
    for key, value in metadata.items():
        np.testing.assert_array_equal(gguf.metadata[key], value, strict=isinstance(value, np.ndarray))
    kinds = [type(gguf.metadata[key]) for key in ("general.quantized", "layers", "eps", "tokens", "scores")]
    assert kinds == [bool, int, float, list, np.ndarray]
    assert {name: (info.shape, info.format.name) for name, info in gguf.tensors.items()} == {
        name: (shape, type) for name, (shape, type, _) in TENSORS.items()
    }
    np.testing.assert_array_equal(gguf.read("plain"), MATRIX, strict=True)
    np.testing.assert_array_equal(gguf.read("half"), np.float32([1, -2, 0.5]), strict=True)
    np.testing.assert_array_equal(gguf.read("quantized")[1], np.arange(-16, 16, dtype=np.float32) / 2, strict=True)


def test_missing_entries_are_named(file):
    gguf = GGUF.open(file(write_gguf(METADATA, TENSORS)))
    with pytest.raises(PastaError, match=r"small.gguf: no tensor 'blk.0'; "):
        gguf.read("blk.0")
    with pytest.raises(PastaError, match=r"small.gguf: no metadata 'llama.context'; "):
        gguf.texts("llama.context", 10)
    with pytest.raises(PastaError, match=r"metadata 'general.architecture' has type str, not ndarray; "):
        gguf.integers("general.architecture", 10)


def test_a_file_cut_anywhere_is_refused(file):
    whole = write_gguf(METADATA, TENSORS)
    only_text = write_gguf({"name": "the last"}, {})
    for content, needed in ((whole, len(whole) - (-len(Q8_0 * 2) % 32)), (only_text, only_text.index(b"last") + 4)):
        for length in range(needed):
            refusal(file(content[:length]))
        open_all(file(content[:needed]))  # the padding at the end may be missing


@pytest.mark.parametrize("flip", [0xFF, 0x80, 0x01])
def test_a_flipped_byte_is_refused_or_harmless(file, flip):
    whole = write_gguf(METADATA, TENSORS)
    refused = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= flip
        try:
            open_all(file(bytes(damaged)))
        except PastaError:  # and no other exception
            refused += 1
    assert refused > len(whole) // 8  # of lengths, types and counts; a name's letters may be any


def test_refusals_state_place_and_problem(file, tmp_path):
    assert "begin with GGUF" in refusal(file(b"GGML" + bytes(100)))
    assert "is empty" in refusal(file(b""))
    assert "version 1" in refusal(file(write_gguf({}, {}, version=1)))
    assert "version 50331648" in refusal(file(write_gguf({}, {}, version=3 << 24)))  # big-endian
    cut = write_gguf({}, TENSORS)[:-64]
    assert "tensor 'quantized' needs bytes" in refusal(file(cut))
    odd = write_gguf({}, {"w": ((2, 31), "Q8_0", bytes(68))})
    assert "tensor 'w' of shape (2, 31) in Q8_0 isn't made of whole, aligned blocks" in refusal(file(odd))
    unknown = bytearray(write_gguf({}, {"w": ((2, 32), "Q8_0", bytes(68))}))
    unknown[unknown.index(b"w") + 1 + 4 + 16] = 9  # Q8_1
    assert "tensor 'w' has the unknown number format 9; quantize it to one of F32, " in refusal(file(bytes(unknown)))
    twice = write_gguf({"ab": 1, "cd": 2}, {"ef": ((1,), "F32", bytes(4)), "gh": ((1,), "F32", bytes(4))})
    assert "duplicate metadata 'ab'" in refusal(file(twice.replace(b"cd", b"ab")))
    assert "duplicate tensor 'ef'" in refusal(file(twice.replace(b"gh", b"ef")))
    assert "No such file" in refusal(tmp_path / "absent.gguf")
    assert "Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize(("key", "count"), [("tokens", 4), ("scores", 3)])
def test_counts_beyond_the_file_are_refused_unread(file, key, count):
    content = bytearray(write_gguf(METADATA, TENSORS))
    at = content.index(key.encode()) + len(key) + 8  # after the key, the types of the array and of its items
    assert content[at] == count
    content[at : at + 8] = (2**60).to_bytes(8, "little")
    assert f"metadata '{key}'" in refusal(file(bytes(content)))


def test_the_formats_equal_the_references():
    import gguf.quants

    sizes = {code.value: (code.name, *gguf.GGML_QUANT_SIZES[code]) for code in gguf.GGMLQuantizationType}
    assert {code: tuple(format) for code, format in FORMATS.items()} == {code: sizes[code] for code in FORMATS}
    assert {format.name for format in FORMATS.values()} >= {code.name for code in gguf.quants._type_traits}


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)
def test_results_do_not_depend_on_the_chunk_size(format, monkeypatch):
    """Random bytes of every format in chunks of any size equal the reference's rows, without a warning."""
    import gguf.quants

    stored = np.random.default_rng(0).integers(0, 256, (64, 2048 // format.values * format.bytes), np.uint8)
    with np.errstate(all="ignore"):
        rows = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[format.name]).reshape(-1)
    for chunk in (1 << 15, 7):
        monkeypatch.setattr("pasta_jax.files.gguf._CHUNK", chunk)
        np.testing.assert_array_equal(dequantize(stored.reshape(-1), format), rows, strict=True)


def digest(gguf: GGUF) -> str:
    """Of the bits of all tensors as float32."""
    sha = hashlib.sha256()
    for name in sorted(gguf.tensors):
        sha.update(np.ascontiguousarray(gguf.read(name)))
    return sha.hexdigest()


@requires_smollm2
def test_smollm2_is_bit_equal():
    """Tensors as another implementation decodes them, and metadata as the reference reads them."""
    import gguf

    ours, theirs = GGUF.open(packages.path("smollm2_135m")), gguf.GGUFReader(packages.path("smollm2_135m"))
    assert digest(ours) == "035b238cdb1c3a64e21315cad8d5d362e75ed6f6e847ca3508b006dff3ca3fd6"
    assert ours.tensors.keys() == {tensor.name for tensor in theirs.tensors}
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key in ("general.name", "llama.rope.freq_base", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.merges"):
        assert ours.metadata[key] == fields[key].contents()


@requires_gemma
def test_gemma_is_bit_equal():
    """Its tensors tile the file, which verifies all offsets."""
    gguf = GGUF.open(packages.path("gemma3_270m"))
    assert {info.format.name for info in gguf.tensors.values()} == {"F32", "Q5_0", "Q8_0", "Q4_K", "Q6_K"}
    assert digest(gguf) == "1338c04fc517a9e767cfe72bec8cd46542f5ada7f08e02eb0e6a570a12cfa922"
    end = None
    for info in sorted(gguf.tensors.values(), key=lambda info: info.offset):
        assert end is None or info.offset == -(-end // 32) * 32
        end = info.offset + info.blocks * info.format.bytes
    assert end == packages.path("gemma3_270m").stat().st_size


@pytest.mark.slow
def test_a_start_does_not_import_the_reference():
    command = "import sys, pasta_jax.weights.load; assert 'gguf' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)
