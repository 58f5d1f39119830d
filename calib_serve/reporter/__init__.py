"""Reporters: count served predictions and sign their receipts, as every server does."""
