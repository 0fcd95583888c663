# Short names for bootstrap.py, which does all the set-up.
PYTHON ?= python3
.PHONY: help act4s test check

help:  ## what can be made
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/'

act4s:  ## measure Act IV-S on the embedded model (a reduced set) and say where the results are
	$(PYTHON) bootstrap.py act4s

test:  ## run the tests
	$(PYTHON) bootstrap.py test

check:  ## compare every derived file with its source
	$(PYTHON) bootstrap.py check
