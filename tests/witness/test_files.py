"""Reads what the safetensors and gguf packages write, and lets them read what we write.

FP4MOE_FILE_PROBE names the program file_probe. Bytes are compared, never rounded values.
"""
import json
import os
import struct
import subprocess

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

PROBE = os.environ["FP4MOE_FILE_PROBE"]

# Types numpy (with ml_dtypes) has a name for, as safetensors spells them.
NUMPY_TYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "U64": np.uint64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
# Bits per element of every type of the format.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


def listing(path):
    done = subprocess.run([PROBE, "list", str(path)], capture_output=True, check=True)
    return json.loads(done.stdout)


def refusal(path):
    done = subprocess.run([PROBE, "list", str(path)], capture_output=True, text=True)
    assert done.returncode == 3, (done.returncode, done.stderr)
    return done.stderr.split(":")[0]


def write(kind, path, seed=1):
    subprocess.run([PROBE, f"write-{kind}", str(path), str(seed)], check=True)


def seeded(dtype, shape, seed):
    raw = np.random.default_rng(seed).integers(0, 256, size=64, dtype=np.uint8)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = np.resize(raw, size)
    if dtype is np.bool_:
        data &= 1
    return np.frombuffer(data.tobytes(), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (), (2, 1, 5)])
@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_we_read_what_safetensors_writes(tmp_path, name, shape):
    array = seeded(NUMPY_TYPES[name], shape, 7)
    path = tmp_path / "a.safetensors"
    save_file({"t": array, "other": np.arange(3, dtype=np.uint8)}, path, metadata={"k": "é\n"})
    found = listing(path)
    assert found["metadata"] == [{"k": "é\n"}]
    assert found["tensors"]["t"] == {"dtype": name, "shape": list(shape),
                                     "bytes": array.tobytes().hex()}


# The types numpy has no name for are written through the package's own serializer.
@pytest.mark.parametrize("name", BITS)
def test_we_read_every_type_that_safetensors_serializes(tmp_path, name):
    data = bytes(np.random.default_rng(3).integers(0, 2, 8 * BITS[name] // 8, dtype=np.uint8))
    spelled = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16",
               "I32": "int32", "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16",
               "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
               "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
               "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
               "F4": "float4_e2m1fn_x2"}.get(name)
    if spelled is None:
        pytest.skip("the package has no way to write this type")
    # The package counts float4_e2m1fn_x2 as pairs and stores twice the last extent.
    shape = [2, 2] if name == "F4" else [2, 4]
    array = np.frombuffer(data, np.uint8)  # must live as long as its address is used
    spec = safetensors.TensorSpec(dtype=spelled, shape=shape, data_ptr=array.ctypes.data,
                                  data_len=array.nbytes)
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors.serialize({"t": spec}))
    assert listing(path)["tensors"]["t"] == {"dtype": name, "shape": [2, 4], "bytes": data.hex()}


def test_safetensors_reads_what_we_write(tmp_path):
    path = tmp_path / "a.safetensors"
    write("safetensors", path)
    ours = listing(path)["tensors"]
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    assert set(ours) == set(theirs)
    assert {entry["dtype"] for entry in ours.values()} == set(BITS)
    for name, entry in ours.items():
        assert theirs[name]["dtype"] == entry["dtype"]
        assert list(theirs[name]["shape"]) == entry["shape"]
        assert bytes(theirs[name]["data"]).hex() == entry["bytes"]
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt", "note": '東 "quoted"\n'}


def test_numpy_sees_the_values_we_wrote(tmp_path):
    path = tmp_path / "a.safetensors"
    write("safetensors", path, seed=2)
    ours = listing(path)["tensors"]
    seen = set()
    with safetensors.safe_open(path, framework="numpy") as file:
        for name, entry in ours.items():
            # The package hands out no 8-bit floats as numpy arrays.
            if entry["dtype"] not in NUMPY_TYPES or entry["dtype"].startswith("F8"):
                continue
            array = file.get_tensor(name)
            assert array.dtype == NUMPY_TYPES[entry["dtype"]]
            assert list(array.shape) == entry["shape"]
            assert array.tobytes().hex() == entry["bytes"]
            seen.add(entry["dtype"])
    assert seen == {name for name in NUMPY_TYPES if not name.startswith("F8")}


def test_data_we_write_is_aligned(tmp_path):
    path = tmp_path / "a.safetensors"
    write("safetensors", path)
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert length % 8 == 0


def test_a_seed_gives_the_same_file(tmp_path):
    for kind in ("safetensors", "gguf"):
        for name, seed in (("a", 5), ("b", 5), ("c", 6)):
            write(kind, tmp_path / name, seed)
        a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
        assert a == b != c


@pytest.fixture
def sharded(tmp_path):
    weights = {f"layer.{i}.w": seeded(np.float32, (2, 3), i) for i in range(5)}
    names = list(weights)
    shards = {"model-00001-of-00002.safetensors": names[:2],
              "model-00002-of-00002.safetensors": names[2:]}
    for shard, part in shards.items():
        save_file({name: weights[name] for name in part}, tmp_path / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index = {"metadata": {"total_size": 120}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return tmp_path, weights


@pytest.mark.parametrize("indexed", [True, False])
def test_we_read_sharded_checkpoints(sharded, indexed):
    folder, weights = sharded
    if not indexed:
        (folder / "model.safetensors.index.json").unlink()
    found = listing(folder)
    assert found["files"] == 2
    assert {name: entry["bytes"] for name, entry in found["tensors"].items()} == {
        name: array.tobytes().hex() for name, array in weights.items()}


def test_a_missing_shard_is_refused(sharded):
    folder, _ = sharded
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert refusal(folder) == "store.missing_shard"


# What the reference refuses, we refuse.
@pytest.mark.parametrize("header, data", [
    ('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"123"),
    ('{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,2]}}', b"12"),
    ('{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}', b"123"),
    ('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', b"12"),
    ('{"a":{"dtype":"X","shape":[2],"data_offsets":[0,2]}}', b"12"),
    ('{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}', b"12"),
    ('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}x', b"12"),
    ('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}\0', b"12"),
    ('{', b""),
])
def test_both_refuse_broken_files(tmp_path, header, data):
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(path.read_bytes())
    assert refusal(path).startswith("safetensors.")


GGUF_TYPES = {name: gguf.GGMLQuantizationType[name] for name in (
    "F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "Q8_0", "MXFP4", "NVFP4", "Q4_0", "Q4_1",
    "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")}


def test_we_read_what_gguf_writes(tmp_path):
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4000000000)
    writer.add_int32("i32", -2000000000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -2**62)
    writer.add_float32("f32", 0.25)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "東")
    writer.add_array("numbers", [-1, 0, 7])
    writer.add_array("words", ["a", "", "é"])
    writer.add_array("floats", [0.5, -1.5])
    expected = {}
    for name, kind in GGUF_TYPES.items():
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, columns = 3, 2 * block
        raw = seeded(np.uint8, (rows, columns // block * size), len(name))
        writer.add_tensor(f"blk.0.{name}.weight", raw, raw_dtype=kind)
        expected[f"blk.0.{name}.weight"] = {"dtype": name, "shape": [rows, columns],
                                            "bytes": raw.tobytes().hex()}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = listing(path)
    assert found["kind"] == "gguf"
    assert found["tensors"] == expected
    values = {key: field["value"] for key, field in found["fields"].items()}
    assert values == {
        "general.architecture": "gpt-oss", "u8": 200, "i8": -100, "u16": 60000, "i16": -30000,
        "u32": 4000000000, "i32": -2000000000, "u64": 2**63, "i64": -2**62, "f32": 0.25,
        "f64": 0.1, "bool": True, "string": "東", "numbers": [-1, 0, 7], "words": ["a", "", "é"],
        "floats": [0.5, -1.5]}


def test_gguf_reads_what_we_write(tmp_path):
    path = tmp_path / "a.gguf"
    write("gguf", path)
    ours = listing(path)["tensors"]
    reader = gguf.GGUFReader(path)
    assert reader.alignment == 64
    theirs = {tensor.name: tensor for tensor in reader.tensors}
    assert set(ours) == set(theirs)
    assert {entry["dtype"] for entry in ours.values()} == set(GGUF_TYPES)
    for name, entry in ours.items():
        tensor = theirs[name]
        assert tensor.tensor_type == GGUF_TYPES[entry["dtype"]]
        assert [int(n) for n in reversed(tensor.shape)] == entry["shape"]
        assert tensor.data_offset % 64 == 0
        assert np.ascontiguousarray(tensor.data).tobytes().hex() == entry["bytes"]
    value = {key: field.contents() for key, field in reader.fields.items()}
    assert value["general.architecture"] == "gpt-oss"
    assert value["test.u8"] == 200 and value["test.i8"] == -100
    assert value["test.u16"] == 60000 and value["test.i16"] == -30000
    assert value["test.u32"] == 4000000000 and value["test.i32"] == -2000000000
    assert value["test.u64"] == 2**63 and value["test.i64"] == -2**62
    assert value["test.f32"] == 0.25 and value["test.f64"] == 0.1
    assert value["test.bool"] is True and value["test.string"] == '東 "quoted"'
    assert value["test.numbers"] == [-1, 0, 7] and value["test.words"] == ["a", "", "é"]
    assert value["test.bools"] == [True, False]


def test_gguf_decodes_the_blocks_we_wrote(tmp_path):
    """Shapes and block sizes agree as far as their own decoder."""
    path = tmp_path / "a.gguf"
    write("gguf", path, seed=3)
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type in (GGUF_TYPES["MXFP4"], GGUF_TYPES["NVFP4"], GGUF_TYPES["Q8_0"]):
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert values.size == int(np.prod(tensor.shape))


def test_we_read_the_parts_that_gguf_writes(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt-oss", split_max_tensors=2)
    expected = {}
    for i in range(5):
        array = seeded(np.float32, (2, 3), i)
        writer.add_tensor(f"blk.{i}.weight", array)
        expected[f"blk.{i}.weight"] = array.tobytes().hex()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert (tmp_path / "m-00003-of-00003.gguf").exists()
    found = listing(tmp_path)
    assert found["files"] == 3
    assert {name: entry["bytes"] for name, entry in found["tensors"].items()} == expected
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    assert refusal(tmp_path) == "store.missing_shard"


def test_big_endian_gguf_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "x", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("t", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert refusal(tmp_path / "a.gguf") == "gguf.big_endian"


def test_numpy_round_trip_of_a_whole_folder(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {f"t{i}": seeded(np.float16, (i, 3), i) for i in range(4)}
    save_file(arrays, path)
    assert {k: v.tobytes() for k, v in load_file(path).items()} == {
        name: bytes.fromhex(entry["bytes"]) for name, entry in listing(path)["tensors"].items()}
