"""Spark: a vision-language model of 2.6 million weights, made from nothing in half an hour."""
