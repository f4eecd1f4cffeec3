"""English number words: `two hundred and five` is 205."""

import itertools
import re

SCALES = {
    "trillion": 1_000_000_000_000,
    "billion": 1_000_000_000,
    "million": 1_000_000,
    "thousand": 1_000,
    "hundred": 100,
    "dozen": 12,
}
"""Words that multiply the number before them, the largest first."""
_UP_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = f"{_UP_TO_NINETEEN} {_TENS} {' '.join(SCALES)}".split()
"""All words of which numbers consist, except `and`."""
# The words of 0 to 99, in this order.
_UP_TO_99 = _UP_TO_NINETEEN.split()
for _tens, _ones in itertools.product(_TENS.split(), ["", *_UP_TO_99[1:10]]):
    _UP_TO_99.append(f"{_tens} {_ones}".rstrip())


def value_of_words(words: str) -> int | None:
    """Return the value of number words in small letters; None for other words.

    >>> value_of_words("two hundred and five"), value_of_words("two cats")
    (205, None)
    """
    for scale, factor in SCALES.items():
        match = re.fullmatch(rf"(.+?) {scale}(?: (?:and )?(.+))?", words)
        if match:
            count = 1 if match[1] == "a" else value_of_words(match[1])
            rest = value_of_words(match[2] or "zero")
            if count is None or rest is None or rest >= factor:
                return None
            return count * factor + rest
    return _UP_TO_99.index(words) if words in _UP_TO_99 else None
