# make help lists the targets.
PYTHON ?= python3
# Images of containers often tell Python to write no bytecode. Then each of the thousands of processes that tests start
# would compile all modules of gpkvs again: a quarter of its start.
unexport PYTHONDONTWRITEBYTECODE

# What users have, and what tests add to it. Some tools hold gRPC and protobuf below what users get: they live in an
# environment of their own, which has no gpkvs.
VENV := .venv
BIN := $(VENV)/bin
DEV := .venv-dev
DEV_BIN := $(DEV)/bin
WHEEL := .venv-wheel
# Folders of the package that lie beside it.
LINKED := server client recovery bench proto
# An editable install knows the modules that were there and the options of CMake, and does not rebuild the C++ by itself:
# the stamp's name tells the first two, its age the third.
MODULES := $(shell (find gpkvs $(LINKED) -name '*.py' | sort; echo $$CMAKE_ARGS) | cksum | cut -d' ' -f1)
NATIVE := $(wildcard gpkvs/kernels/*.* gpkvs/kernels/*/*.* door/*.* door/*/*.*) CMakeLists.txt pyproject.toml
GPKVS := .gpkvs-$(MODULES)
LOCKS := $(wildcard requirements/*.txt)
PROTOS := gpkvs/proto/v1/kv.proto gpkvs/proto/v1/admin.proto
PROTOC := $(DEV_BIN)/python -m grpc_tools.protoc -I gpkvs/proto=proto

.PHONY: help install install-test install-dev demo test suite phases conformance docs docs-all site nightly loaded faults mutants fuzz fuzz-doors fuzz-frames fuzz-redis fuzz-served sanitize sanitize-kernels sanitize-door coverage check proto faces lock clean undo pair wheel

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

%/bin/python:
	@echo "$(if $(filter $(VENV),$*),1 of 4: )an environment for Python in $*"
	@$(PYTHON) -m venv $*

# A lock names every package with version and hashes, the tools that build gpkvs included: `make lock` renews all locks.
# Without a lock for this Python, or with NEWEST=1, the bounds of pyproject.toml count alone.
EXTRAS_run := build
EXTRAS_test := build,test
EXTRAS_dev := dev,site
EXTRAS_wheel := build,wheel
define packages
	@lock=requirements/$(2)-$$($(1)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt; \
	if [ -z "$(NEWEST)" ] && [ -f $$lock ]; then \
		$(1)/bin/python requirements/show_pip.py "$(if $(filter run,$(2)),2 of 4: Python packages,Python packages of $(1))" build/packages-$(2).log install --disable-pip-version-check \
			--require-hashes --requirement $$lock; \
	else \
		$(if $(NEWEST),,echo "there is no $$lock: these are the newest versions that pyproject.toml allows" >&2;) \
		$(1)/bin/python requirements/show_pip.py "$(if $(filter run,$(2)),2 of 4: Python packages,Python packages of $(1))" build/packages-$(2).log install --disable-pip-version-check -v \
			--upgrade --editable '.[$(EXTRAS_$(2))]'; \
	fi
	@touch $@
endef

$(VENV)/.packages-run: $(BIN)/python $(LOCKS)
	$(call packages,$(VENV),run)

$(VENV)/.packages-test: $(VENV)/.packages-run | $(VENV)/$(GPKVS)
	$(call packages,$(VENV),test)

$(DEV)/.packages-dev: $(DEV_BIN)/python $(LOCKS)
	$(call packages,$(DEV),dev)

$(WHEEL)/.packages-wheel: $(WHEEL)/bin/python $(LOCKS)
	$(call packages,$(WHEEL),wheel)

$(VENV)/$(GPKVS): $(VENV)/.packages-run $(NATIVE)
	@$(BIN)/python requirements/show_pip.py "3 of 4: kernels and native door" build/compile.log install \
		--disable-pip-version-check -v --no-deps --no-build-isolation --editable .
	@echo "4 of 4: Python files"
	@$(BIN)/python -m compileall -q gpkvs $(LINKED)
	@touch $@

install: $(VENV)/$(GPKVS)  ## .venv/ with the gpkvs command
	@echo "gpkvs is installed. Next, serve a store, and write to it from another terminal (README.md, Start):"
	@echo "  $(BIN)/gpkvs serve --data /tmp/first"
	@echo "  $(BIN)/gpkvs set greeting hello"
install-test: $(VENV)/.packages-test $(VENV)/$(GPKVS)
install-dev: $(DEV)/.packages-dev

demo: $(VENV)/$(GPKVS)  ## serve, load, kill -9, recover, verify: the whole story in under two minutes
	$(BIN)/gpkvs demo

wheel: $(WHEEL)/.packages-wheel  ## dist/: wheels for glibc 2.28 and newer, with the libraries that they need (PLATFORMS="x86_64 aarch64")
	@$(WHEEL)/bin/python -m deploy.wheel $(PLATFORMS)

# What runs transactions, again with small batches phase by phase, as large ones always are. `pair` has more of them.
BY_PHASES := tests/engine/test_model.py tests/store/test_store.py tests/media/test_transaction.py \
	tests/engine/host/test_native_planner.py tests/engine/test_result_bounds.py tests/recovery/startup/test_tables.py

# The same in stores with an undo log: on a disk a store has a journal unless it is told otherwise. They have format 3,
# which a store has if it is told so. Tests of growth, of compaction, and of blobs and format 4 name what they open. CI
# takes those that commit most.
BY_UNDO := $(if $(CI),$(addprefix tests/engine/,test_model.py test_u64.py test_full_store.py test_resolve.py \
	tables/test_expiry.py tables/test_scan.py seam/test_capacity.py),\
	$(filter-out %growth.py %compaction.py %given_space.py %long_records.py %journal_committer.py %blobs.py \
	%format4.py,$(wildcard tests/engine/test_*.py tests/engine/*/test_*.py)) tests/store/test_gpu_arrays.py) \
	tests/store/test_store.py tests/store/test_close.py tests/recovery/startup/test_tables.py

test: suite docs phases pair undo  ## the whole test suite

# In three processes, whatever the machine has: tests wait for servers and disks half of the time. A file's tests stay
# together, since they share servers. A process that crashes ends the run, and the report names the test: with another in
# its place, the run would wait for ever.
IN_PROCESSES := -n 3 --dist loadfile --max-worker-restart 0

suite: install-test
	$(BIN)/python -m pytest -q $(IN_PROCESSES) tests --ignore tests/docs --ignore tests/conformance

phases: install-test
	$(BIN)/python -m pytest -q --backend cpu-phases $(BY_PHASES)

# As on a GPU: threads stand for it, and the host's threads store a part of its slots. And as on several GPUs. On a disk, the
# host's threads would store all.
IN_MEMORY := /dev/shm/gpkvs-pair
BY_PAIR := tests/engine/test_u64.py tests/engine/test_full_store.py tests/engine/test_resolve.py \
	tests/recovery/startup/test_failpoints.py tests/recovery/startup/test_rollback.py
BY_SHARDS := tests/engine/test_u64.py tests/engine/device/test_unordered_gets.py

pair: install-test
	$(BIN)/python -m pytest -q --basetemp $(IN_MEMORY) --backend cpu-pair $(BY_PAIR)
	$(BIN)/python -m pytest -q --basetemp $(IN_MEMORY) --backend cpu-shards $(BY_SHARDS)
	rm -r $(IN_MEMORY)

undo: install-test
	$(BIN)/python -m pytest -q --commit undo --format 3 $(BY_UNDO)

# CI leaves out a second library of the same kind, and random sequences, of which `suite` has others.
conformance: install-test  ## Redis' own test suite and its client libraries, against a gpkvs server
	$(BIN)/python -m pytest -q -n 3 --max-worker-restart 0 $(if $(CI),-k "not valkey and not machines") tests/conformance

docs: install-test  ## every block of README and documents, as a reader runs it
	$(BIN)/python -m pytest -q tests/docs

docs-all: install-test  ## the same on a fresh installation, with the slow blocks
	$(BIN)/python -m pytest -q tests/docs --docs-all

site: install-dev  ## the documents as a site, in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(DEV_BIN)/mkdocs build

nightly: install-test  ## what takes hours; results go to bench/results/nightly (SIZE=small STEPS="crash consistency" SEED=...)
	$(BIN)/python -m tests.tools.nightly $(if $(SIZE),--size $(SIZE)) $(if $(SEED),--seed $(SEED)) $(STEPS)

TIMES ?= 20
loaded: install-test  ## a file of tests, TIMES=20 times beside eight busy processes: none may fail by chance (FILE=tests/...)
	$(BIN)/python -m tests.tools.loaded --times $(TIMES) $(or $(FILE),$(error FILE=tests/... says which))

SECONDS ?= $(if $(CI),10,30)
faults: install-test  ## the 40 faults by number, with their tests and results (FAULTS="17 18" for some, COMMIT=journal)
	$(BIN)/python -m tests.faults $(if $(COMMIT),--commit $(COMMIT)) $(FAULTS)

mutants: install-test  ## put mistakes into copies of the code: a test must see each (MUTANTS="name ..." for some, JOBS=2)
	$(BIN)/python -m tests.mutants $(if $(JOBS),-j $(JOBS)) $(MUTANTS)

fuzz: install-test  ## throw broken messages at the server's decoding and a real store (SECONDS=30 SEED=...)
	$(BIN)/python -m tests.tools.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fuzz-doors: install-test  ## send the same calls to a server and to its oracle: answers and stores must be the same (SECONDS=30 SEED=...)
	$(BIN)/python -m tests.tools.fuzz_doors --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fuzz-redis: install-test  ## send the same commands to gpkvs and to a real Redis: replies must be the same (SECONDS=30, or COMMANDS=100000; SEED=...)
	$(BIN)/python -m tests.tools.fuzz_redis --seconds $(SECONDS) $(if $(COMMANDS),--commands $(COMMANDS)) $(if $(SEED),--seed $(SEED))

fuzz-frames: build/address  ## throw broken HTTP/2 at the native door (SECONDS=30 SEED=...)
	build/address/fuzz_http2 $(SECONDS) $(or $(SEED),$(shell date +%s))

check: install-test install-dev  ## ruff, mypy, the layers, the texts that mutants replace, and the generated files
	$(DEV_BIN)/ruff check .
	$(DEV_BIN)/ruff format --check .
	$(BIN)/mypy
	$(DEV_BIN)/lint-imports --no-cache
	$(DEV_BIN)/python -m tools.async_faces --check
	$(BIN)/python -m pytest -q -k "every_mutant_says or text_of_a_mistake" tests/mutants/test_runner.py \
		tests/recovery/proof/diskfail/test_explorer.py
	@mkdir -p build/proto
	$(PROTOC) --python_out=build/proto --pyi_out=build/proto --grpc_python_out=build/proto $(PROTOS)
	@for file in build/proto/gpkvs/proto/v1/*; do cmp $$file proto/v1/$$(basename $$file) \
		|| { echo "generated files differ: run make proto"; exit 1; }; done

# The C++ code again, for tests: build/<preset> with the flags of CMakePresets.json. CMake knows what is out of date, so it
# is asked each time. It compiles as much at once as `make -j` leaves it, which + passes on. Tests name the libraries in
# GPKVS_KERNELS and GPKVS_DOOR_LIBRARY.
TARGETS_address := kernels door door_threads door_allocations fuzz_http2
TARGETS_thread := door_threads
TARGETS_coverage := kernels
TARGETS_plain := kernels door
BUILDS := $(addprefix build/,address thread coverage plain)

.PHONY: $(BUILDS)
$(BUILDS): $(VENV)/.packages-run
	+@export PATH="$(CURDIR)/$(BIN):$$PATH" && cmake --preset $(@F) >$@.log \
		&& cmake --build $@ --target $(TARGETS_$(@F))

# Where the kernels run most of their paths, in a minute.
SANITIZED := tests/kernels/test_kernels.py tests/store/test_store.py tests/store/test_buffers.py tests/engine/test_u64.py tests/recovery/startup/test_damage.py \
	tests/engine/host/test_native_planner.py tests/engine/host/test_native_resolve.py tests/engine/host/test_native_engine.py \
	tests/engine/test_model.py

FLIPS := $(if $(CI),100,500)

sanitize: sanitize-kernels sanitize-door  ## kernels and native door under AddressSanitizer and UndefinedBehaviorSanitizer

sanitize-kernels: install-test build/address
	export GPKVS_KERNELS=$(CURDIR)/build/address/_kernels.so ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)"; \
	$(BIN)/python -m pytest -q -p no:cacheprovider $(SANITIZED) \
		&& $(BIN)/python -m pytest -q -p no:cacheprovider --commit undo --format 3 tests/engine/test_model.py \
			tests/engine/test_u64.py \
		&& $(BIN)/gpkvs bitflip --bits $(FLIPS) --bursts $(FLIPS) --every 400 \
		&& $(BIN)/gpkvs bitflip --commit journal --bits $(FLIPS) --bursts $(FLIPS) --every 400

sanitize-door: build/address build/thread  ## the native door under ThreadSanitizer and AddressSanitizer
	build/thread/door_threads clients
	build/thread/door_threads tls
	build/address/door_threads clients
	build/address/door_threads tls
	build/address/door_threads stops
	build/address/door_threads queue
	build/address/door_threads parser
	build/address/fuzz_http2 3 $$(date +%s)
	build/address/door_allocations plain engine 1
	build/address/door_allocations plain left 20
	build/address/door_allocations logins engine 1
	build/address/door_allocations large engine 1 $(if $(GPKVS_ALL_ALLOCATIONS),,$$(($$(date +%s) % 19 + 1)) 19)
	build/address/door_allocations tls engine 1 $(if $(GPKVS_ALL_ALLOCATIONS),,$$(($$(date +%s) % 37 + 1)) 37)

# In CI one life of a store: seconds more than it takes to start the server.
fuzz-served: install-test build/address  ## kill a server whose native code has sanitizers, under real clients that know each answer (SECONDS=30 SEED=...)
	$(BIN)/python -m tests.tools.fuzz_served --seconds $(if $(CI),3,$(SECONDS)) $(if $(SEED),--seed $(SEED))

# Without the explorer, whose kernels are built without counters.
COVERED := tests/engine tests/media tests/pm tests/kernels tests/store tests/recovery/startup tests/faults

coverage: install-test install-dev build/coverage  ## branches of engine, transaction, heap, recovery and kernels that no test takes
	rm -f build/coverage/python.*
	find build/coverage -name '*.gcda' -delete
	-GPKVS_KERNELS=$(CURDIR)/build/coverage/_kernels.so $(BIN)/coverage run -m pytest -q $(COVERED)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report
	$(DEV_BIN)/gcovr --root gpkvs/kernels --txt-metric branch --exclude-throw-branches --print-summary build/coverage

# The newest versions that pyproject.toml allows and Linux has wheels of, on x86_64. Those of aarch64 are the same. `run` has the versions that `test` has. No lock names an address.
PYTHONS := 3.11 3.12 3.13
COMPILE := $(DEV_BIN)/uv pip compile --quiet --no-config --upgrade --generate-hashes --only-binary :all: \
	--python-platform x86_64-manylinux_2_28 --no-emit-index-url --no-annotate --custom-compile-command 'make lock' pyproject.toml

lock: install-dev  ## requirements/: the versions that make installs, anew
	@set -e; compile() { $(COMPILE) --output-file "$$@" >/dev/null; }; \
	for python in $(PYTHONS); do \
		echo Python $$python; \
		compile requirements/dev-$$python.txt --python-version $$python --extra dev --extra site; \
		compile requirements/wheel-$$python.txt --python-version $$python --extra build --extra wheel; \
		compile requirements/test-$$python.txt --python-version $$python --extra build --extra test; \
		compile requirements/run-$$python.txt --python-version $$python --extra build -c requirements/test-$$python.txt; \
	done

proto: install-dev  ## regenerate the protobuf files
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

faces: install-dev  ## the asynchronous faces again, of the blocking ones
	$(DEV_BIN)/python -m tools.async_faces

clean:  ## remove what make made
	rm -rf $(VENV) $(DEV) $(WHEEL) build dist
