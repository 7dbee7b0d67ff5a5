"""Adversarial training of text encoders: Adversarial Self-Attention (Wu et al., AAAI 2023) and its peers."""
