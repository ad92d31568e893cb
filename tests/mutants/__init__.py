"""Mutants: small mistakes in the product, one at a time, each of which the tests of its module must find.

A mutant replaces one passage of a source file. `python -m tests.mutants` copies the source tree, applies one mutant,
and runs the tests that should fail then. If they pass, the mutant survives: a promise of the product is not tested.

`tests/simulation/mutants.py` checks something else: there whole parts of a cluster behave wrongly (a store that does
not check the lease, an executor that never stops), and the witness of the simulation must notice. Those mistakes show
whether that detector works. The mutants here are single wrong lines, and show whether the tests of a module would
notice an edit that breaks the module.

To add one: an entry in the data module of its area, with a sentence that says which promise it breaks and the tests
that should notice. If it survives, write the missing test, or leave the mutant out if no behaviour depends on the line.
"""
