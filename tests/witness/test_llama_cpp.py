"""GGUF files with a tokenizer: the gguf package and llama.cpp as witnesses.

Tiny models of transformers with a tokenizer of the tokenizers package go through `fp4moe quantize`
and `transcode --to gguf`. The gguf package reads every field back; its own vocabulary class and the
rules of llama.cpp's converter give what must be there. FP4MOE_CLI names the program.
FP4MOE_LLAMA_CPP names the folder of llama.cpp's programs (llama-tokenize, llama-completion,
llama-perplexity); without it, what needs them is skipped.
"""
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CLI = os.environ["FP4MOE_CLI"]
LLAMA = os.environ.get("FP4MOE_LLAMA_CPP", "")
needs_llama = pytest.mark.skipif(not LLAMA, reason="FP4MOE_LLAMA_CPP names no llama.cpp programs")

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
         rf"{CONTRACTIONS}?" r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXT = ("The router chooses experts for each token; a kernel multiplies what they hold. We've 1234 "
        "tokens, 56 experts and 7 layers, haven't we?\n\nIt's Größe über alles, наука и 東京 too: "
        "x = {'a': [1, 2], \"b\": (3.5)};  // done\n\tHELLO World McDonald\n") * 4
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}"
ROWS = 640  # of the embedding: more than tokens
PRINTABLE = [chr(c) for c in range(33, 127)]

COMMON = dict(vocab_size=ROWS, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=512, tie_word_embeddings=False)
SPECIALS = {
    "gpt_oss": ["<|startoftext|>", "<|return|>", "<|endoftext|>"],
    "qwen3_moe": ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
    "glm4_moe": ["[gMASK]", "<|endoftext|>", "<|user|>", "<|observation|>"],
    "minimax_m2": ["]~!b[", "[e~[", "]!p~["],
}
SPLITS = {"gpt_oss": GPT4O, "qwen3_moe": QWEN2, "glm4_moe": LLAMA3, "minimax_m2": GPT4O}
PRE = {"gpt_oss": "gpt-4o", "qwen3_moe": "qwen2", "glm4_moe": "glm4", "minimax_m2": "minimax-m2"}


def run(*arguments):
    done = subprocess.run([CLI, *map(str, arguments), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def make_model(family):
    torch.manual_seed(1)
    if family == "gpt_oss":
        config = transformers.GptOssConfig(
            **COMMON, hidden_size=128, intermediate_size=96, head_dim=32, num_local_experts=4,
            num_experts_per_tok=2, sliding_window=32,
            rope_parameters={"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                             "truncate": True, "original_max_position_embeddings": 128,
                             "rope_theta": 150000.0})
    elif family == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(
            **COMMON, hidden_size=128, intermediate_size=192, moe_intermediate_size=64, head_dim=32,
            num_experts=8, num_experts_per_tok=3, norm_topk_prob=True)
    elif family == "glm4_moe":
        config = transformers.Glm4MoeConfig(
            **COMMON, hidden_size=128, intermediate_size=192, moe_intermediate_size=64, head_dim=32,
            n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
            n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
            use_qk_norm=True, attention_bias=True)
    else:
        config = transformers.MiniMaxM2Config(
            **COMMON, hidden_size=128, intermediate_size=64, head_dim=32, num_local_experts=8,
            num_experts_per_tok=3, rotary_dim=16, bos_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, value in list(model.named_parameters()) + list(model.named_buffers()):
            if value.dtype.is_floating_point and "inv_freq" not in name and "norm" not in name:
                value.normal_(0, 0.6 if "embed" in name or "bias" in name else 2 / value.shape[-1] ** 0.5)
            elif "norm" in name:
                value.uniform_(0.5, 1.5)
    return model.to(torch.bfloat16)


def make_tokenizer(family, folder, **options):
    folder.mkdir(exist_ok=True, parents=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(**options))
    pre = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pre.Sequence([pre.Split(tokenizers.Regex(SPLITS[family]), "isolated"),
                                            pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=560, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(SPECIALS[family])
    tokenizer.add_tokens(["<think>", "<|odd|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = SPECIALS[family]
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": names[1],
        "pad_token": {"content": names[-1], "__type": "AddedToken"}, "add_bos_token": False}))
    (folder / "chat_template.jinja").write_text(CHAT)
    return tokenizer


@pytest.fixture(scope="module", params=[
    ("gpt_oss", "mxfp4", "gpt-oss"), ("qwen3_moe", "mxfp4", "compressed-tensors"),
    ("qwen3_moe", "nvfp4", "modelopt"), ("glm4_moe", "mxfp4", "quark"),
    ("minimax_m2", "mxfp4", "compressed-tensors")], ids=lambda p: "-".join(p))
def made(request, tmp_path_factory):
    """A model, its checkpoint in FP4, and the GGUF file made of it."""
    family, form, dialect = request.param
    folder = tmp_path_factory.mktemp(f"{family}-{form}")
    model = make_model(family)
    tokenizer = make_tokenizer(family, folder / "plain")
    with torch.no_grad():  # greedy tokens are single characters, so that texts tell the tokens
        head = model.lm_head.weight
        keep = torch.zeros(ROWS, 1, dtype=head.dtype)
        keep[[tokenizer.token_to_id(c) for c in PRINTABLE]] = 1
        head.mul_(keep).mul_(4)
    model.save_pretrained(folder / "plain")
    run("quantize", folder / "plain", "--format", form, "--to", dialect, "-o", folder / "fp4")
    report = run("transcode", folder / "fp4", "--to", "gguf", "-o", folder / "model.gguf")
    reader = gguf.GGUFReader(folder / "model.gguf")
    return dict(family=family, form=form, dialect=dialect, folder=folder, model=model, tokenizer=tokenizer,
                notes=report["notes"], reader=reader,
                fields={key: field.contents() for key, field in reader.fields.items()})


class Kept(gguf.SpecialVocab):
    """What the package's class would write."""

    def __init__(self, folder):
        super().__init__(folder, load_merges=True)
        self.written = {}
        self.add_to_gguf(self, quiet=True)

    def __getattr__(self, name):
        if not name.startswith("add_"):
            raise AttributeError(name)
        keys = gguf.Keys.Tokenizer
        known = {"add_token_merges": keys.MERGES, "add_chat_template": keys.CHAT_TEMPLATE,
                 "add_unk_token_id": keys.UNK_ID, "add_sep_token_id": keys.SEP_ID,
                 "add_pad_token_id": keys.PAD_ID, "add_add_bos_token": keys.ADD_BOS,
                 "add_add_eos_token": keys.ADD_EOS}
        key = known.get(name) or getattr(keys, name.removeprefix("add_").removesuffix("_token_id").upper() + "_ID")
        return lambda value: self.written.__setitem__(key, value)


def test_every_tokenizer_field_is_what_the_gguf_package_makes_of_the_files(made):
    fields, tokenizer = made["fields"], made["tokenizer"]
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.pre"] == PRE[made["family"]]
    # The converter's rule for tokens and their types.
    names = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.get_added_tokens_decoder()
    types = gguf.TokenType
    for number in range(ROWS):
        token, kind = fields["tokenizer.ggml.tokens"][number], fields["tokenizer.ggml.token_type"][number]
        if number not in names:
            assert (token, kind) == (f"[PAD{number}]", types.UNUSED)
        elif number in added:
            looks = added[number].special or re.fullmatch(r"<\|.*\|>", names[number])
            assert (token, kind) == (names[number], types.CONTROL if looks else types.USER_DEFINED)
        else:
            assert (token, kind) == (names[number], types.NORMAL)
    expected = Kept(made["folder"] / "plain").written
    if made["family"] == "glm4_moe":  # the converter names more
        for key, token in (("bos", "[gMASK]"), ("eot", "<|user|>"), ("unknown", "<|endoftext|>"),
                           ("eom", "<|observation|>")):
            expected.setdefault(f"tokenizer.ggml.{key}_token_id", tokenizer.token_to_id(token))
    assert expected.pop("tokenizer.chat_template") == fields["tokenizer.chat_template"] == CHAT
    own = {key: value for key, value in fields.items() if key.startswith("tokenizer.ggml.")
           and key.split(".")[-1] not in ("model", "pre", "tokens", "token_type")}
    assert own == expected
    assert made["notes"] == []


def test_hyperparameters_are_those_of_the_configuration(made):
    fields, config = made["fields"], made["model"].config
    name = fields["general.architecture"]
    assert gguf.MODEL_ARCH_NAMES[{"gpt_oss": gguf.MODEL_ARCH.GPT_OSS, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
                                  "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
                                  "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2}[made["family"]]] == name
    expected = {"block_count": 2, "context_length": 512, "embedding_length": 128, "vocab_size": ROWS,
                "feed_forward_length": config.intermediate_size, "attention.head_count": 4,
                "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32,
                "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
                "rope.freq_base": config.rope_parameters["rope_theta"],
                "expert_used_count": config.num_experts_per_tok}
    if made["family"] == "gpt_oss":
        expected |= {"attention.sliding_window": 32, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                     "rope.scaling.original_context_length": 128, "rope.scaling.yarn_beta_fast": 32.0,
                     "rope.scaling.yarn_beta_slow": 1.0, "expert_count": 4, "expert_feed_forward_length": 96}
    if made["family"] == "glm4_moe":
        expected |= {"expert_shared_count": 1, "leading_dense_block_count": 1, "expert_gating_func": 2,
                     "expert_weights_scale": 1.5, "expert_weights_norm": True, "rope.dimension_count": 16,
                     "expert_count": 8, "expert_feed_forward_length": 64}
    if made["family"] == "minimax_m2":
        expected |= {"expert_gating_func": 2, "rope.dimension_count": 16, "expert_count": 8}
    for key, value in expected.items():
        assert fields[f"{name}.{key}"] == pytest.approx(value), key
    for tensor in made["reader"].tensors:  # llama.cpp's arithmetic wants vectors in float32
        if len(tensor.shape) == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32, tensor.name


def test_the_way_back_gives_the_same_tensors(made):
    folder = made["folder"]
    run("transcode", folder / "model.gguf", "--to", made["dialect"], "-o", folder / "back")
    first, again = (dict(tensors_of(folder / name)) for name in ("fp4", "back"))
    assert first.keys() == again.keys()
    for name, (kind, data) in first.items():
        assert again[name] == (kind, data), name
    shutil.rmtree(folder / "back")


def tensors_of(folder):
    import safetensors
    for path in sorted(folder.glob("*.safetensors")):
        for name, view in safetensors.deserialize(path.read_bytes()):
            yield name, ((view["dtype"], tuple(view["shape"])), bytes(view["data"]))


def dequantized(made):
    """The model with the experts that the GGUF file holds, in float32."""
    tensors = {t.name: t for t in made["reader"].tensors}

    def numbers(name):
        tensor = tensors[name + ".weight"]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        scale = tensors.get(name + ".scale")
        return values * scale.data.reshape(-1, 1, 1) if scale is not None else values

    model = make_model(made["family"]).float()
    state = made["model"].state_dict()
    model.load_state_dict({name: value.float() if value.dtype.is_floating_point else value
                           for name, value in state.items()})
    with torch.no_grad():
        for number, layer in enumerate(model.model.layers):
            experts = getattr(layer.mlp, "experts", None)
            if experts is None:
                continue
            gate, up, down = (torch.tensor(numbers(f"blk.{number}.ffn_{part}_exps"))
                              for part in ("gate", "up", "down"))
            if made["family"] == "gpt_oss":
                joined = torch.stack([gate, up], dim=2).flatten(1, 2)  # interleaved rows
                experts.gate_up_proj.copy_(joined.transpose(1, 2))
                experts.down_proj.copy_(down.transpose(1, 2))
            else:
                experts.gate_up_proj.copy_(torch.cat([gate, up], dim=1))
                experts.down_proj.copy_(down)
    return model


def llama(program, *arguments):
    path = Path(LLAMA) / program
    if not path.exists():
        pytest.skip(f"there is no {program} in FP4MOE_LLAMA_CPP")
    done = subprocess.run([str(path), *map(str, arguments)], capture_output=True, stdin=subprocess.DEVNULL,
                          timeout=600)
    error = done.stderr.decode(errors="replace")
    assert done.returncode == 0, error[-3000:]
    return done.stdout.decode(errors="replace"), error


@needs_llama
def test_llama_cpp_tokenizes_as_the_tokenizer_does(made):
    text = "We've 12345 tokens, isn't it?\n\n  Größe  東京!! <|odd|>ok<think> HELLO McDonald x={'a':1}"
    out, _ = llama("llama-tokenize", "-m", made["folder"] / "model.gguf", "-p", text, "--ids", "--log-disable")
    assert json.loads(out) == made["tokenizer"].encode(text, add_special_tokens=False).ids


@needs_llama
def test_llama_cpp_generates_the_tokens_of_transformers(made):
    model, tokenizer, count = dequantized(made), made["tokenizer"], 48
    prompt = "The router chooses experts for each token; haven't we 1234?"
    # More than is compared: the program may end before its last tokens are printed.
    out, _ = llama("llama-completion", "-m", made["folder"] / "model.gguf", "-p", prompt, "-n", 3 * count,
                   "--temp", 0, "--ignore-eos", "-no-cnv", "--no-display-prompt", "-t", 2, "--no-warmup",
                   "-c", 256)
    text = out.strip("\n")[:count]
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    theirs = [tokenizer.token_to_id(c) for c in text]
    assert len(theirs) == count and None not in theirs, out
    with torch.no_grad():
        logits = model(torch.tensor([ids + theirs])).logits[0, len(ids) - 1:-1]
    best = logits.argmax(-1).tolist()
    equal = sum(a == b for a, b in zip(best, theirs))
    # llama.cpp rounds activations to eight bits: a near tie may go the other way.
    behind = (logits.max(-1).values - logits[range(count), theirs]) / logits.std(-1)
    print(f"{made['family']} {made['form']}: {equal} of {count} tokens are transformers' own, "
          f"the others at most {behind.max():.4f} standard deviations behind")
    # A router's near tie moves logits more than that. Another model than ours has no token in common.
    assert equal >= count * 3 // 4 and behind.median() == 0


@needs_llama
def test_llama_cpp_gives_the_perplexity_of_transformers(made):
    model, tokenizer, window = dequantized(made), made["tokenizer"], 128
    path = made["folder"] / "text"
    path.write_text(TEXT)
    out, error = llama("llama-perplexity", "-m", made["folder"] / "model.gguf", "-f", path, "-c", window,
                       "-b", window, "-t", 2, "--no-warmup")
    told = float(re.search(r"Final estimate: PPL = ([0-9.]+)", out + error).group(1))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    losses = []
    for begin in range(0, len(ids) - window + 1, window):
        chunk = torch.tensor(ids[begin:begin + window])
        with torch.no_grad():
            logits = model(chunk[None]).logits[0]
        at = torch.arange(window // 2, window - 1)
        losses.append(torch.nn.functional.cross_entropy(logits[at], chunk[at + 1], reduction="none"))
    own = math.exp(torch.cat(losses).mean())
    print(f"{made['family']} {made['form']}: perplexity {told} in llama.cpp, {own:.4f} in transformers")
    assert told == pytest.approx(own, rel=0.03)


@needs_llama
def test_llama_cpp_loads_a_file_without_a_vocabulary(made):
    folder = made["folder"] / "bare"
    shutil.copytree(made["folder"] / "fp4", folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    report = run("transcode", folder, "--to", "gguf", "-o", made["folder"] / "bare.gguf")
    assert len(report["notes"]) == 1 and "no vocabulary" in report["notes"][0]
    out, _ = llama("llama-bench", "-m", made["folder"] / "bare.gguf", "-p", 16, "-n", 4, "-r", 1, "-t", 2, "-o",
                   "json")
    assert all(row["avg_ts"] > 0 for row in json.loads(out))
    shutil.rmtree(folder)
