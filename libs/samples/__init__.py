"""What arrives of a node's samples: which of them are news. Pure; when one was heard is an argument."""
