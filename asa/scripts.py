"""Scripts that put no space between words."""

# Thai, Lao, Tibetan, Burmese and Khmer, kana, Han; as the inside of a regular expression's brackets.
UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
