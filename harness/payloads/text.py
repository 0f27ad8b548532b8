"""Prompt texts of a set length: natural looking, the same for the same seed, in English or Chinese.

A text begins with the place of its nonce, which counts among its characters. Lengths in tokens are
estimates until the target has told how many tokens one text came to; `CHARS_PER_TOKEN` was measured on
texts of these word lists.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from harness.payloads.nonces import TEXT_WIDTH
from harness.profile import TextSpec

CHARS_PER_TOKEN: Mapping[str, float] = {"en": 5.5, "zh": 1.8}  # zh by Qwen's vocabulary; cl100k_base: 0.85
NONCE_TOKENS = 12  # 16 hexadecimal digits: 8-10 tokens by cl100k_base, 13-14 by Qwen's
_EN = """
the a this that each every some one light water city river morning window garden machine letter
paper road market table engine signal number answer question report system result person teacher
student doctor worker village mountain forest island summer winter story picture color shape
corner edge surface center distance walks opens holds carries finds shows reads writes moves turns
keeps follows changes grows builds measures small large quiet bright narrow early late simple
careful common open green blue white clear warm cold new under over between behind near along
across before after during without toward inside and but while because
"""
_ZH = """
城市 河流 早晨 窗户 花园 机器 信件 道路 市场 桌子 问题 答案 报告 系统 结果 老师 学生 医生 工人 村庄 山谷
森林 夏天 冬天 故事 图片 颜色 形状 角落 表面 中心 距离 我们 他们 大家 今天 明天 已经 正在 慢慢 常常 可以
应该 需要 打开 看见 带来 发现 说明 阅读 写下 移动 保持 跟随 改变 增长 建造 测量 安静 明亮 简单 仔细 普通
清楚 温暖 新的 旁边 之间 后面 前面 里面 一个 这个 那个 因为 所以 但是 而且 如果 然后 并且 为了 关于 通过
"""
# The longest that fits is taken; one image or several change only the words.
_ASK = {
    ("en", 0): ("Summarize the following text. ", "Continue: "),
    ("en", 1): ("Describe the image in detail. ", "Describe it. "),
    ("en", 2): ("Describe the images one by one in detail. ", "Describe the images. "),
    ("zh", 0): ("请概括下面的文字。", "请续写："),
    ("zh", 1): ("请详细描述这张图片。", "请描述图片。"),
    ("zh", 2): ("请逐一详细描述这些图片。", "请描述图片。"),
}


def length_in_chars(spec: TextSpec, chars_per_token: Mapping[str, float] | None = None) -> int:
    """Return the characters of a text, the nonce included; `chars_per_token`: the target's, by language."""
    if spec.chars is not None:
        return spec.chars
    tokens = spec.tokens or 0
    if chars_per_token and spec.lang in chars_per_token:
        return max(1, round(tokens * chars_per_token[spec.lang]))
    rest = round((tokens - NONCE_TOKENS) * CHARS_PER_TOKEN[spec.lang])
    return TEXT_WIDTH + max(0, rest) if tokens > NONCE_TOKENS else max(1, tokens * TEXT_WIDTH // NONCE_TOKENS)


def nonce_width(chars: int) -> int:
    """Return how many characters of a text its nonce takes: all of a very short one."""
    return min(TEXT_WIDTH, chars)


def words_after_nonce(chars: int, lang: str, images: int, seed: str) -> str:
    """Return what follows the nonce in a text of `chars` characters about so many images.

    Together they have exactly `chars` characters.
    """
    left = chars - nonce_width(chars)
    if not left:
        return ""
    asks = _ASK[lang, min(images, 2)]
    ask = next((a for a in asks if len(a) + 1 <= left), "")
    text = f" {ask}{prose(left, lang, random.Random(seed))}"[:left]
    if left > len(ask) + 8:
        text = text[:-1].rstrip(" ,，") + "." if lang == "en" else text[:-1] + "。"
    return text.rstrip().ljust(left, ".")  # tokenizers treat trailing blanks in ways of their own


def prose(chars: int, lang: str, rng: random.Random) -> str:
    """Return sentences of at least `chars` characters in all."""
    text, between, comma, stop = (_EN, " ", ", ", ". ") if lang == "en" else (_ZH, "", "，", "。")
    words = text.split()
    parts: list[str] = []
    total = 0
    while total < chars:
        chosen = rng.choices(words, k=rng.randint(7, 14))
        middle = rng.randint(3, 5)
        sentence = between.join(chosen[:middle]) + comma + between.join(chosen[middle:]) + stop
        parts.append(sentence[0].upper() + sentence[1:])
        total += len(sentence)
    return "".join(parts)
