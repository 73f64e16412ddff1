"""Rank by Rank: distributed training, every claim run on live ranks."""
