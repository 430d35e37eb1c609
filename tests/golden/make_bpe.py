# SPDX-License-Identifier: Apache-2.0
"""Tiny BPE tokenizers as tokenizer.json, over bytes and over characters, and what Hugging Face's tokenizers makes of many texts with them.

Usage: python make_bpe.py
Writes bpe/{gpt2,llama3,qwen2,llama2}.json, trained on LICENSE and on the texts below, bpe.txt with the ids of texts by the
first three, and bpe_characters.txt with those by llama2.json and its variants, and texts of ids.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
ENDS = ["<|end|>", "<|end|>x", "<|begin|>"]

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "  a", "   a  ", "it's IT'S we'll WE'LL we've they'RE I'm I'M he'd 'twas ''s 'x",
    "12 1234 1234567 ½ ² ٣٤٥٦ 一二三", "tabs\tand\t\tmore \t x", "lines\n\nof\r\ntext \n \n  indented\n",
    "naïve café e\u0301 \u212b ﬁ Ångström", "Zażółć gęślą jaźń", "日本語のテキスト、ええ。", "👩‍👩‍👧 🇩🇪 emoji!!",
    "a_b-c+d == e != f;\r\n// comment...\n\n\n", "x\u00a0y\u2003z\u3000w \u2028u\u0085v", "The attention of the attention.",
    "one<|end|>two<|end|>x <|begin|> <|en", "\u0000\u0001\u007f\u0080", "queries, keys and values of every head",
    "    for (int i = 0; i < 10; ++i) {\n      x(i) = 0;\n    }\n",
]


def random_texts(draw):
    letters = "aeinrst  '\n\r\t0123.,!-_éßжあ\u0301\u00a0👍Ⅷ"
    for _ in range(60):
        yield "".join(draw.choice(letters) for _ in range(draw.randint(1, 30)))


def make(name):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        pattern = Regex(LLAMA3 if name == "llama3" else QWEN2)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), whole])
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tokenizer.train_from_iterator([(ROOT / "LICENSE").read_text()] + TEXTS, trainer)  # texts that stay as they are
    tokenizer.add_special_tokens([AddedToken(end, special=True, normalized=False) for end in ENDS])
    if name == "llama3":
        begin = tokenizer.token_to_id("<|begin|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B",
                                          special_tokens=[("<|begin|>", begin)])])
    (HERE / "bpe").mkdir(exist_ok=True)
    path = HERE / "bpe" / (name + ".json")
    path.write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, indent=None, separators=(",", ":")) + "\n")
    return Tokenizer.from_file(str(path))


BYTES = ["<0x%02X>" % byte for byte in range(256)]
FIRST = ["<unk>", "<s>", "</s>"]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
BLANKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PARTS = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
NORMALIZED = [{"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": True, "special": i < 3} for i, content in
              [(1, "<s>"), (2, "</s>"), (3 + 0x0A, "<0x0A>"), (480, "w▁x")]]
# As Phi-3's, which take the blanks behind them, and others: the sides that are stripped.
STRIPPED = [{"id": i, "content": content, "single_word": False, "lstrip": "l" in sides, "rstrip": "r" in sides,
             "normalized": "n" in sides, "special": i < 3} for i, content, sides in
            [(1, "<s>", ""), (2, "</s>", "r"), (480, "<|user|>", "r"), (481, "<|left|>", "l"), (482, "<|both|>", "lr"),
             (483, "<near>", "lrn")]]

# Merge patches (RFC 7396) of llama2.json.
VARIANTS = {
    "llama2": {},
    "first": {"normalizer": None, "pre_tokenizer": METASPACE},
    "always": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "always"}},
    "never": {"normalizer": None, "pre_tokenizer": METASPACE | {"prepend_scheme": "never"}},
    "normalized": {"added_tokens": NORMALIZED},
    "first_normalized": {"normalizer": None, "pre_tokenizer": METASPACE, "added_tokens": NORMALIZED},
    "gemma": {"normalizer": BLANKS, "decoder": {"type": "Sequence", "decoders": PARTS},
              "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                "invert": False}},
    "unknown": {"model": {"vocab": {name: None for name in ("<0xE6>", "<0xF0>", "<0x0A>")}}},
    "each_unknown": {"model": {"fuse_unk": False, "vocab": {name: None for name in ("<0xE6>", "<0xF0>", "<0x0A>")}}},
    "stripped": {"added_tokens": STRIPPED},
    "first_stripped": {"normalizer": None, "pre_tokenizer": METASPACE, "added_tokens": STRIPPED},
}

HARD = [
    "▁", "▁a", "a▁b", " ▁ ", "a  b   c    d", "<s>", "<s>the", "<s> the", "the<s>the", "the <s> the </s>", "</s></s>the", " <s>",
    "<unk> the", "<0x0A>", "the <0x41>", "\n\n\n", "\tthe\n the\r\n", "a\u0000b\u0007\u001b[0m\u007f", "日本語 the 日本",
    "👩‍👩‍👧 the👍🏽 🇩🇪", "é e\u0301 ﬁ", "\uffff\U0010ffff\ufffd", "𝔘𝔫𝔦\u00a0\u3000", "aéあaa日éa👍👍日日a\n日\n", "the end</s>", "w x w▁x",
]
BESIDE = [
    "<|user|>\nthe end</s>\n<|user|>the", " <|user|> the", "the <|user|> ", "<|left|> the", "the  <|left|> the", " \t\n<|left|>",
    "the <|both|> the", " <|both|> <|both|> ", "<|user|> <|left|>", "the \u00a0\u3000\x85<|both|>\u2028\u200b the", "é\u00a0<|left|>",
    "日<|both|>日", "the<near>the", "the <near> the", "the\n<near>\nthe", "\n<near>", "</s> \n\n</s>", "▁<|both|>▁",
]


def make_characters():
    """As SentencePiece's models are converted: bytes first, and a merge for each way to make a token of two others."""
    base = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    base.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    base.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # no token spans words
    trainer = trainers.BpeTrainer(vocab_size=480, special_tokens=FIRST + BYTES, show_progress=False)
    base.train_from_iterator([(ROOT / "LICENSE").read_text()] * 2 + [" é"] * 9, trainer)
    base.pre_tokenizer = None
    base.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    base.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    file = json.loads(base.to_str())
    file["added_tokens"] = file["added_tokens"][:len(FIRST)]
    vocab = file["model"]["vocab"]
    file["model"]["merges"] = []
    for token in sorted(vocab, key=vocab.get)[len(FIRST + BYTES):]:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        file["model"]["merges"] += sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    (HERE / "bpe" / "llama2.json").write_text(json.dumps(file, ensure_ascii=True, separators=(",", ":")) + "\n")
    return file


def patched(value, patch):
    if not isinstance(patch, dict):
        return patch
    value = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            value.pop(key, None)
        else:
            value[key] = patched(value.get(key), change)
    return value


def random_ids(draw, file):
    """Tokens without control characters."""
    vocab = file["model"]["vocab"]
    tokens = [token for token in vocab if token not in FIRST + BYTES]
    rows = [b"", "日".encode(), "👍é\n".encode(), b"\xe6\x97", b"\x97", b"\xff\xf0\x9f\x91", b"\xed\xa0\x80", b"\xc0\xaf"]
    while True:
        ids = []
        for _ in range(draw.randint(1, 6)):
            ids += [vocab["<0x%02X>" % byte] for byte in draw.choice(rows)]
            ids += [vocab[draw.choice(tokens)] for _ in range(draw.randint(1, 2))]
        ids = ids[draw.randint(0, 2):len(ids) - draw.randint(0, 3)]
        if ids and not mixed(ids):
            return ids


def mixed(ids):
    """Whether bytes in a row are no text, but some of them are: tokenizers writes U+FFFD for all, a stream cannot."""
    rows = "".join(chr(i - 3) if 3 <= i < 259 else "\uffff" for i in ids).split("\uffff")
    for row in (row.encode("latin-1") for row in rows):
        some = row.decode(errors="ignore")
        if some and some.encode() != row:
            return True
    return False


def characters():
    file = make_characters()
    lines = ["# made by make_bpe.py: token ids by Hugging Face's tokenizers, of llama2.json with a change, and texts of ids", ""]
    for name, patch in VARIANTS.items():
        changed = patched(file, patch)
        tokenizer = Tokenizer.from_str(json.dumps(changed))
        draw = random.Random(11)
        texts = HARD + (TEXTS + list(random_texts(draw)) if name == "llama2" else BESIDE if "stripped" in name else [])
        lines += ["case variant", "text name " + name, "text change " + spelled(json.dumps(patch, ensure_ascii=True)), "end"]
        for text in texts:
            ids = tokenizer.encode(text).ids
            lines += ["case " + name, ("text text " + spelled(text)).rstrip(),
                      " ".join(["tensor ids 1", str(len(ids))] + [str(i) for i in ids]), "end"]
        sequences = [random_ids(draw, changed) for _ in range(40 if name in ("llama2", "gemma") else 0)]
        for ids in sequences + ([[480, 13, 480, 322, 480]] if name == "normalized" else []):
            lines += ["case " + name, ("text decoded " + spelled(tokenizer.decode(ids))).rstrip(),
                      " ".join(["tensor ids 1", str(len(ids))] + [str(i) for i in ids]), "end"]
    (HERE / "bpe_characters.txt").write_text("\n".join(lines) + "\n")


def spelled(text):
    """As in README.md; blanks at the ends are written as bytes too."""
    inner = range(len(text) - len(text.lstrip(" ")), len(text.rstrip(" ")))
    return "".join(c if c.isascii() and c.isprintable() and c != "\\" and i in inner else
                   "".join("\\x%02X" % byte for byte in c.encode()) for i, c in enumerate(text))


def main():
    lines = ["# made by make_bpe.py: token ids by Hugging Face's tokenizers", ""]
    for name in ("gpt2", "llama3", "qwen2"):
        tokenizer = make(name)
        draw = random.Random(7)
        for text in TEXTS + list(random_texts(draw)):
            ids = tokenizer.encode(text).ids
            lines += ["case " + name, ("text text " + spelled(text)).rstrip(),
                      " ".join(["tensor ids 1", str(len(ids))] + [str(i) for i in ids]), "end"]
    (HERE / "bpe.txt").write_text("\n".join(lines) + "\n")
    characters()


main()
