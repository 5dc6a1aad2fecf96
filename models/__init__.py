"""Model repository, preprocessing, backends, batching and fusion: from pictures to labels."""
