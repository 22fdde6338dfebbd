# make help lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An editable install knows the modules that were there and the options of CMake, and does not rebuild the C++ by itself:
# the stamp's name tells the first two, its age the third.
MODULES := $(shell (find gpkvs server client recovery bench proto -name '*.py' | sort; echo $$CMAKE_ARGS) | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.installed-$(MODULES)
NATIVE := $(wildcard gpkvs/kernels/*.* door/*.*) CMakeLists.txt pyproject.toml
PROTOS := gpkvs/proto/v1/kv.proto gpkvs/proto/v1/admin.proto
PROTOC := $(BIN)/python -m grpc_tools.protoc -I gpkvs/proto=proto

.PHONY: help install install-test install-dev demo test suite doors phases conformance docs docs-all nightly faults mutants doors fuzz fuzz-doors fuzz-frames fuzz-redis sanitize sanitize-door coverage check proto clean undo pair wheel

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

# What is for developers has what is for tests, and that what is for users: each is one build.
$(STAMP): $(VENV)/bin/python $(NATIVE)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMP)-test: $(VENV)/bin/python $(NATIVE)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $(STAMP) $@

$(STAMP)-dev: $(VENV)/bin/python $(NATIVE)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP) $(STAMP)-test $@

install: $(STAMP)  ## .venv/ with the gpkvs command
install-test: $(STAMP)-test
install-dev: $(STAMP)-dev

demo: install  ## serve, load, kill -9, recover, verify: the whole story in under two minutes
	$(BIN)/gpkvs demo

wheel: install-dev  ## dist/: a wheel for systems as new as this one, with the libraries that it needs
	@rm -rf build/wheel
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

# What runs transactions, again with small batches phase by phase, as large ones always are. `pair` has more of them.
BY_PHASES := tests/engine/test_model.py tests/store/test_store.py tests/media/test_transaction.py \
	tests/engine/test_native_planner.py tests/engine/test_result_bounds.py tests/recovery/startup/test_tables.py

# The same in stores with an undo log: on a disk a store has a journal unless it is told otherwise. Tests of growth and of
# compaction name both.
BY_UNDO := $(filter-out %growth.py %compaction.py %given_space.py %long_records.py %journal_committer.py,\
	$(wildcard tests/engine/test_*.py)) \
	tests/store/test_store.py tests/store/test_close.py tests/recovery/startup/test_tables.py

test: suite doors docs phases pair undo  ## the whole test suite

# In three processes, whatever the machine has: tests wait for servers and disks half of the time. A file's tests stay
# together, since they share servers. A process that crashes ends the run, and the report names the test: with another in
# its place, the run would wait for ever.
IN_PROCESSES := -n 3 --dist loadfile --max-worker-restart 0

suite: install-test
	$(BIN)/python -m pytest -q $(IN_PROCESSES) tests --ignore tests/docs --ignore tests/conformance

# What a client sees of a server, again behind gRPC's own server: it is the native door's oracle. Only the native door
# speaks the Redis protocol. CI runs what is of the contract; `make nightly` runs all.
DOORS := $(if $(CI),$(patsubst %,tests/server/test_%.py,kv options pipeline scan tables) tests/server/access/test_login.py,\
	tests/server --ignore tests/server/door --ignore tests/server/redis)

doors: install-test
	GPKVS_DOOR=grpcio $(BIN)/python -m pytest -q $(IN_PROCESSES) $(DOORS)

phases: install-test
	$(BIN)/python -m pytest -q --backend cpu-phases $(BY_PHASES)

# As on a GPU: threads stand for it, and the host's threads store a part of its slots. And as on several GPUs.
BY_PAIR := tests/engine/test_u64.py tests/engine/test_full_store.py tests/engine/test_resolve.py \
	tests/recovery/startup/test_failpoints.py tests/recovery/startup/test_rollback.py
BY_SHARDS := tests/engine/test_u64.py tests/engine/test_unordered_gets.py

pair: install-test
	$(BIN)/python -m pytest -q --backend cpu-pair $(BY_PAIR)
	$(BIN)/python -m pytest -q --backend cpu-shards $(BY_SHARDS)

undo: install-test
	$(BIN)/python -m pytest -q --commit undo $(BY_UNDO)

# CI leaves out a second library of the same kind, and random sequences, of which `suite` has others.
conformance: install-test  ## Redis' own test suite and its client libraries, against a gpkvs server
	$(BIN)/python -m pytest -q -n 3 --max-worker-restart 0 $(if $(CI),-k "not valkey and not machines") tests/conformance

docs: install-test  ## every block of README and documents, as a reader runs it
	$(BIN)/python -m pytest -q tests/docs

docs-all: install-test  ## the same on a fresh installation, with the slow blocks
	$(BIN)/python -m pytest -q tests/docs --docs-all

nightly: install-dev  ## what takes hours; results go to bench/results/nightly (SIZE=small STEPS="crash consistency" SEED=...)
	$(BIN)/python -m tests.nightly $(if $(SIZE),--size $(SIZE)) $(if $(SEED),--seed $(SEED)) $(STEPS)

SECONDS ?= $(if $(CI),15,30)
faults: install-test  ## the 40 faults by number, with their tests and results (FAULTS="17 18" for some, COMMIT=journal)
	$(BIN)/python -m tests.faults $(if $(COMMIT),--commit $(COMMIT)) $(FAULTS)

mutants: install-test  ## put mistakes into copies of the code: a test must see each (MUTANTS="name ..." for some, JOBS=2)
	$(BIN)/python -m tests.mutants $(if $(JOBS),-j $(JOBS)) $(MUTANTS)

fuzz: install-test  ## throw broken messages at the server's decoding and a real store (SECONDS=30 SEED=...)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fuzz-doors: install-test  ## send the same calls to both doors: answers and stores must be the same (SECONDS=30 SEED=...)
	$(BIN)/python -m tests.fuzz_doors --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fuzz-redis: install-test  ## send the same commands to gpkvs and to a real Redis: replies must be the same (SECONDS=30, or COMMANDS=100000; SEED=...)
	$(BIN)/python -m tests.fuzz_redis --seconds $(SECONDS) $(if $(COMMANDS),--commands $(COMMANDS)) $(if $(SEED),--seed $(SEED))

# The native door's HTTP/2, under sanitizers.
build/sanitize/fuzz_http2: tests/server/door/fuzz_http2.cpp $(wildcard door/*.*)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -pthread \
		-Wl,--wrap=malloc -o $@ $< door/*.cpp -lnghttp2 -lssl -lcrypto

fuzz-frames: build/sanitize/fuzz_http2  ## throw broken HTTP/2 at the native door (SECONDS=30 SEED=...)
	$< $(SECONDS) $(or $(SEED),$(shell date +%s))

check: install-dev  ## ruff, mypy, the layers, and the generated protobuf files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	@mkdir -p build/proto
	$(PROTOC) --python_out=build/proto --pyi_out=build/proto --grpc_python_out=build/proto $(PROTOS)
	@for file in build/proto/gpkvs/proto/v1/*; do cmp $$file proto/v1/$$(basename $$file) \
		|| { echo "generated files differ: run make proto"; exit 1; }; done

# The kernels again, for tests: GPKVS_KERNELS names them, whatever is installed.
KERNELS := $(wildcard gpkvs/kernels/*.*)
CXX_KERNELS = $(CXX) -std=c++17 -g -shared -fPIC -pthread -fno-strict-aliasing \
	$(if $(filter x86_64,$(shell uname -m)),-march=x86-64-v2,-march=armv8-a+crc)

build/sanitize/_kernels.so: $(KERNELS)
	@mkdir -p $(@D)
	$(CXX_KERNELS) -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
		-o $@ gpkvs/kernels/*.cpp

# Kernels and door as they are, for a copy of the checkout with a mistake in it (tests/mutants).
build/plain/_kernels.so: $(KERNELS)
	@mkdir -p $(@D)
	$(CXX_KERNELS) -O1 -DGPKVS_NO_CLONES -o $@ gpkvs/kernels/*.cpp

build/plain/door/%.o: door/%.cpp $(wildcard door/*.h*) gpkvs/kernels/engine_batch.h
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -g -fPIC -pthread -c -o $@ $<

build/plain/_door.so: $(patsubst %.cpp,build/plain/%.o,$(wildcard door/*.cpp))
	$(CXX) -shared -pthread -o $@ $^ -lnghttp2 -lssl -lcrypto

# Where the kernels run most of their paths, in a minute.
SANITIZED := tests/kernels/test_kernels.py tests/store/test_store.py tests/engine/test_u64.py tests/recovery/startup/test_damage.py \
	tests/engine/test_native_planner.py tests/engine/test_native_resolve.py tests/engine/test_model.py

FLIPS := $(if $(CI),250,500)

sanitize: install-test build/sanitize/_kernels.so sanitize-door  ## the kernels under AddressSanitizer and UndefinedBehaviorSanitizer
	export GPKVS_KERNELS=$(CURDIR)/build/sanitize/_kernels.so ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)"; \
	$(BIN)/python -m pytest -q -p no:cacheprovider $(SANITIZED) \
		&& $(BIN)/python -m pytest -q -p no:cacheprovider --commit undo tests/engine/test_model.py tests/engine/test_u64.py \
		&& $(BIN)/gpkvs bitflip --bits $(FLIPS) --bursts $(FLIPS) --every 400 \
		&& $(BIN)/gpkvs bitflip --commit journal --bits $(FLIPS) --bursts $(FLIPS) --every 400

# The door with a toy engine (tests/server/door/door_threads.cpp, door_allocations.cpp), as sanitizers want it.
DOOR_PROGRAM := $(wildcard door/*.cpp) tests/server/door/door_threads.cpp
SANITIZERS_thread := thread
SANITIZERS_address := address,undefined -fno-sanitize-recover=all

define door_under
build/sanitize/$(1)/%.o: %.cpp $(wildcard door/*.h*) gpkvs/kernels/engine_batch.h $(wildcard tests/server/door/*.hpp)
	@mkdir -p $$(@D)
	$$(CXX) -std=c++17 -g -O1 -fno-omit-frame-pointer -fPIE -pthread -fsanitize=$$(SANITIZERS_$(1)) -c -o $$@ $$<

build/sanitize/$(1)/door_threads: $(DOOR_PROGRAM:%.cpp=build/sanitize/$(1)/%.o)
	$$(CXX) -pthread -fsanitize=$$(SANITIZERS_$(1)) -o $$@ $$^ -lnghttp2 -lssl -lcrypto
endef
$(eval $(call door_under,thread))
$(eval $(call door_under,address))

build/sanitize/address/door_allocations: $(patsubst %.cpp,build/sanitize/address/%.o,\
		$(wildcard door/*.cpp) tests/server/door/door_allocations.cpp)
	$(CXX) -pthread -fsanitize=$(SANITIZERS_address) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc \
		-o $@ $^ -lnghttp2 -lssl -lcrypto

sanitize-door: build/sanitize/thread/door_threads build/sanitize/address/door_threads build/sanitize/address/door_allocations  ## the native door under ThreadSanitizer and AddressSanitizer
	build/sanitize/thread/door_threads clients
	build/sanitize/thread/door_threads tls
	build/sanitize/address/door_threads clients
	build/sanitize/address/door_threads tls
	build/sanitize/address/door_threads stops
	build/sanitize/address/door_threads queue
	build/sanitize/address/door_threads parser
	build/sanitize/address/door_allocations plain engine 1
	build/sanitize/address/door_allocations plain left 20
	build/sanitize/address/door_allocations logins engine 1
	build/sanitize/address/door_allocations tls engine 1 $(if $(GPKVS_ALL_ALLOCATIONS),,$$(($$(date +%s) % 37 + 1)) 37)

build/coverage/_kernels.so: $(KERNELS)
	@mkdir -p $(@D)
	$(CXX_KERNELS) -O0 --coverage -fprofile-update=atomic -DGPKVS_NO_CLONES \
		-Dalways_inline=noinline -Wno-attributes -o $@ gpkvs/kernels/*.cpp

# Without the explorer, whose kernels are built without counters.
COVERED := tests/engine tests/media tests/pm tests/kernels tests/store tests/recovery/startup tests/faults

coverage: install-dev build/coverage/_kernels.so  ## branches of engine, transaction, heap, recovery and kernels that no test takes
	rm -f build/coverage/python.* build/coverage/*.gcda
	-GPKVS_KERNELS=$(CURDIR)/build/coverage/_kernels.so $(BIN)/coverage run -m pytest -q $(COVERED)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report
	$(BIN)/gcovr --root gpkvs/kernels --txt-metric branch --exclude-throw-branches --print-summary build/coverage

proto: install-dev  ## regenerate the protobuf files
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

clean:  ## remove what make made
	rm -rf $(VENV) build dist
