# SPDX-License-Identifier: Apache-2.0
"""Tiny byte-level tokenizers as tokenizer.json, and what Hugging Face's tokenizers makes of many texts with them.

Usage: python make_bpe.py
Writes bpe/{gpt2,llama3,qwen2}.json, trained on LICENSE and on the texts below, and bpe.txt with the ids of texts.
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


main()
