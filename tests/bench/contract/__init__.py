"""The contract between Weft and a program (docs/contract.md), held by real frameworks on both runtimes."""
