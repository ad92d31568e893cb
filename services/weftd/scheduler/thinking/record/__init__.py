"""The record of decisions: entries of each turn, their replay, and the mistakes that are set aside."""
