# Every target sets up .venv by itself (scripts/setup.sh); the first time that takes some minutes.
.PHONY: help train test test-slow lint

help:
	@echo "make train      train the quickstart policy"
	@echo "make test       the tests"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make lint       ruff and mypy"

train:
	@scripts/setup.sh cpu report
	.venv/bin/ascent train examples/quickstart.yaml

test:
	@scripts/setup.sh cpu dev report ray transformers-5.5
	.venv/bin/python -m pytest

test-slow:
	@scripts/setup.sh cpu dev report ray transformers-5.5 smollm2
	.venv/bin/python -m pytest -m slow --timeout 1800

lint:
	@scripts/setup.sh cpu dev report
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
