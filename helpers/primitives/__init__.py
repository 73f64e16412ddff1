"""What several strategies share: buckets, communication hooks, samplers, norms, uneven inputs, paced compute."""
