"""Benchmarks and load tests; they write their figures as JSON under loadtest/results."""
