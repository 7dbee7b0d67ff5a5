"""Dropout of attention's weights by 16 random bits each, on a CPU (asa.cpu_attention) and a GPU (asa.fused)."""

DRAWS = 2**16  # that 16 bits can be: a probability is rounded to a multiple of 2^-16


def spare(dropout: float) -> tuple[int, float]:
    """(How many of the draws drop a weight, the factor of the others), for a probability."""
    threshold = round(dropout * DRAWS)
    return threshold, DRAWS / (DRAWS - threshold) if threshold < DRAWS else 0.0
