"""The record of decisions: entries of each cycle, their replay, and the mistakes that are set aside."""
