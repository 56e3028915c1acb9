# SPDX-License-Identifier: Apache-2.0
"""The KEY=VALUE words that programs of bench/micro print."""

from collections.abc import Collection


def words(line: str, texts: Collection[str], last: str) -> dict[str, int | str]:
    """The words of a line, whole numbers but for the keys in texts; last: the key of a name, which is the last word,
    whatever is in it. Raises ValueError if another value is no number."""
    head, is_there, name = line.partition(f" {last}=")
    found: dict[str, int | str] = {last: name} if is_there else {}
    for word in head.split():
        key, is_one, value = word.partition("=")
        if is_one:
            found[key] = value if key in texts else int(value)
    return found
