"""A load test with ghz: unary calls with a real clip as binary data."""
