"""How many examples hypothesis tries."""

from hypothesis import settings


def examples(number: int) -> int:
    """Return `number`, or as much less of it as the profile has less than the usual 100 examples.

    `ci/run.py test` chooses the profile "quick"; all other runs have the usual one.
    """
    return max(3, number * settings().max_examples // 100)
