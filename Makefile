# libvthr: `make help` lists the targets. BUILD=DIR builds elsewhere, V=1 shows the commands.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules --no-print-directory

BUILD ?= build
PREFIX ?= /usr/local
LIB ?= $(BUILD)/libvthr.so
JOBS ?= 2
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif

V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = @$(if $(filter 1,$(V)),:,printf '  %-6s %s\n' $(1) $(2))
# A sub-make that builds with $(JOBS) jobs unless the caller chose a number.
submake = +$(Q)$(MAKE) $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))
need = $(Q)tests/tools/install-packages

# --- flags -----------------------------------------------------------------------------------------
# offsetof on our structs with private parts: GCC supports it.
WARN := -Wall -Wextra -Werror -Wno-invalid-offsetof
LIB_CXXFLAGS := -std=c++17 -O2 -g -fPIC -fno-exceptions -fno-rtti -fvisibility=hidden \
  -ftls-model=initial-exec -fno-stack-protector -fasynchronous-unwind-tables -U_FORTIFY_SOURCE -pthread $(WARN) -I.
LIB_LDFLAGS := -shared -Wl,-soname,libvthr.so -Wl,-z,initfirst -Wl,-z,now -Wl,-z,relro -Wl,-z,defs \
  -Wl,--as-needed -Wl,--exclude-libs,ALL -static-libstdc++ -static-libgcc
STATIC_LIBS := -Wl,-Bstatic -luring -lboost_context -Wl,-Bdynamic
TOOL_CXXFLAGS := -std=c++17 -O2 -g -pthread $(WARN) -I.
UNIT_CXXFLAGS := -std=c++17 -O2 -g -pthread -static-libstdc++ -static-libgcc $(WARN) -I.
TSAN_CXXFLAGS := -std=c++17 -O1 -g -pthread -fsanitize=thread -DVTHR_NO_FS_SWITCH $(WARN) -Wno-tsan -I.
ASAN_CXXFLAGS := -std=c++17 -O1 -g -pthread -fsanitize=address -fno-omit-frame-pointer $(WARN) -I.
# Programs are built as a stranger would: not one flag of ours. A line "// cflags: ..." in a source adds its own.
PROG_FLAGS := -O2 -g -pthread
PROG_LIBS := -ldl -lrt
deps = -MMD -MP -MF $(1).d -MT $(1)
own_flags = $$(sed -n 's@^.*// *cflags: *@@p' $<)

# --- sources ---------------------------------------------------------------------------------------
runtime_src := $(wildcard runtime/*.cc runtime/*.S)
interpose_src := $(wildcard interpose/*.cc interpose/*.S)
diag_src := $(filter-out diag/vthr.cc,$(wildcard diag/*.cc))
obj = $(addprefix $(BUILD)/obj/,$(addsuffix .o,$(1)))
runtime_obj := $(call obj,$(runtime_src))
diag_obj := $(call obj,$(diag_src))
lib_obj := $(strip $(runtime_obj) $(diag_obj) $(call obj,$(interpose_src)))
example_bin := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))

# tests/DIR/NAME.{c,cc,cpp} is one program, tests/DIR/NAME.so.{c,cc} one shared object that a program loads.
prog_bins = $(addprefix $(BUILD)/,$(basename $(wildcard $(foreach d,$(1),tests/$(d)/*.c tests/$(d)/*.cc tests/$(d)/*.cpp))))
test_bin := $(call prog_bins,prog stress regress cases servers demo model)
bench_bin := $(call prog_bins,bench)
unit_bin := $(patsubst tests/%.cc,$(BUILD)/tests/%,$(wildcard tests/unit/*.cc))
# Units that also run under ThreadSanitizer (`make check-tsan`): all of the runtime that need neither FS switch nor signals in
# time; under AddressSanitizer (`make check-asan`), with the real switch: all of the runtime. tests/seeded has a program for
# each that it must complain of.
TSAN_UNITS ?= admission_test context_test context_fp_test epoll_test handoff_test lock_test one_carrier_test op_test options_test \
  parking_fibers_test parking_stress_test parking_test requeue_test ring_owner_test ring_test runq_test sched_test stack_test \
  timer_test wait_test race
ASAN_UNITS ?= $(filter-out race,$(TSAN_UNITS)) pins_test tls_test use_after_free
tsan_bin := $(addprefix $(BUILD)/tsan/,$(TSAN_UNITS))
asan_bin := $(addprefix $(BUILD)/asan/,$(ASAN_UNITS))

tool := $(if $(wildcard diag/vthr.cc),$(BUILD)/vthr)
lib := $(if $(lib_obj),$(BUILD)/libvthr.so)

.PHONY: all lib tool examples demo check check-long check-tsan check-asan soak tests units tsan asan bench bench-quick \
  install uninstall format lint layers symbols options help clean packages FORCE
all: lib tool examples
lib: $(lib)
tool: $(tool)
examples: $(example_bin)
units: $(unit_bin)
tests: $(test_bin) units
tsan: $(tsan_bin)
asan: $(asan_bin)

# --- the build -------------------------------------------------------------------------------------
# Compilers and headers are looked for once, before the first object.
$(BUILD)/.toolchain: tests/tools/install-packages
	$(Q)mkdir -p $(@D)
	$(Q)CXX=$(CXX) tests/tools/install-packages --headers
	$(Q)touch $@

# Changed flags rebuild everything.
flags_now := $(CC) $(CXX) $(LIB_CXXFLAGS) $(LIB_LDFLAGS) $(STATIC_LIBS) $(UNIT_CXXFLAGS) $(PROG_FLAGS) $(TSAN_CXXFLAGS) $(ASAN_CXXFLAGS)
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D); [ "$$(cat $@ 2>/dev/null)" = '$(flags_now)' ] || echo '$(flags_now)' >$@

$(BUILD)/obj/%.cc.o: %.cc $(BUILD)/.flags | $(BUILD)/.toolchain
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(LIB_CXXFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/%.S.o: %.S $(BUILD)/.flags | $(BUILD)/.toolchain
	$(call say,AS,$<)
	$(Q)mkdir -p $(@D) && $(CC) -g -fPIC -I. -MMD -MP -c $< -o $@

$(BUILD)/obj/diag/vthr.cc.o: diag/vthr.cc $(BUILD)/.flags | $(BUILD)/.toolchain
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(TOOL_CXXFLAGS) -MMD -MP -c $< -o $@

# HOOK and EXPORT rows have default visibility and are in no version node: ld gives them the base version, which matches a
# reference with any version. HOOK_VER rows get theirs by .symver; the map only makes the nodes and hides the implementations.
$(BUILD)/libvthr.map: $(wildcard interpose/symbols.def) tests/tools/version-map
	$(call say,MAP,$@)
	$(Q)mkdir -p $(@D) && tests/tools/version-map $(wildcard interpose/symbols.def) >$@

$(BUILD)/libvthr.so: $(lib_obj) $(BUILD)/libvthr.map
	$(call say,LD,$@)
	$(Q)$(CXX) $(LIB_LDFLAGS) -Wl,--version-script=$(BUILD)/libvthr.map $(lib_obj) $(STATIC_LIBS) -o $@.tmp
	$(Q)needed=$$(readelf -dW $@.tmp | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | tr '\n' ' '); \
	  [ "$$needed" = "libc.so.6 " ] || { echo "$@: needs $${needed:-nothing}, only libc.so.6 is allowed." \
	  "From the loader: $$(nm -Du --with-symbol-versions $@.tmp | grep -oE '(__tls_get_addr|_dl_|_rtld_)[^ ]*' | tr '\n' ' ')" \
	  "(__tls_get_addr comes with libstdc++'s exceptions: a throwing new, a std container)" >&2; exit 1; }
	$(Q)mv $@.tmp $@

$(BUILD)/libvthr_runtime.a: $(runtime_obj)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libvthr_diag.a: $(diag_obj)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/vthr: $(call obj,diag/vthr.cc) $(BUILD)/libvthr_diag.a $(BUILD)/libvthr_runtime.a
	$(call say,LD,$@)
	$(Q)$(CXX) -pthread -static-libstdc++ -static-libgcc $^ $(STATIC_LIBS) -ldl -o $@

$(BUILD)/examples/%: examples/%.c | $(BUILD)/.toolchain
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) -O2 -g -pthread $(call deps,$@) $< -o $@

define program_rules
$$(BUILD)/tests/%.so: tests/%.so.$(1) $$(BUILD)/.flags | $$(BUILD)/.toolchain
	$$(call say,$(2),$$<)
	$$(Q)mkdir -p $$(@D) && $$($(2)) $$(PROG_FLAGS) -fPIC -shared $$(call deps,$$@) $$< $$(own_flags) $$(PROG_LIBS) -o $$@
$$(BUILD)/tests/%: tests/%.$(1) $$(BUILD)/.flags | $$(BUILD)/.toolchain
	$$(call say,$(2),$$<)
	$$(Q)mkdir -p $$(@D) && $$($(2)) $$(PROG_FLAGS) $$(call deps,$$@) $$< $$(own_flags) $$(PROG_LIBS) -o $$@
endef
$(eval $(call program_rules,c,CC))
$(eval $(call program_rules,cc,CXX))
$(eval $(call program_rules,cpp,CXX))

$(BUILD)/tests/unit/%: tests/unit/%.cc $(BUILD)/libvthr_diag.a $(BUILD)/libvthr_runtime.a $(BUILD)/.flags
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(UNIT_CXXFLAGS) $(call deps,$@) $(filter %.cc %.a,$^) -lgtest_main -lgtest $(STATIC_LIBS) -ldl -o $@

$(BUILD)/tests/model/%: tests/model/%.cc $(BUILD)/libvthr_runtime.a $(BUILD)/.flags
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(UNIT_CXXFLAGS) $(call deps,$@) $(filter %.cc %.a,$^) $(STATIC_LIBS) -ldl -o $@

# Sanitizers: runtime and GoogleTest both instrumented; for ThreadSanitizer the context switch without FS.
GTEST_DIR ?= /usr/src/googletest/googletest
define sanitizer_rules
$$(BUILD)/$(1)/obj/%.cc.o: %.cc $$(BUILD)/.flags | $$(BUILD)/.toolchain
	$$(call say,$(2),$$<)
	$$(Q)mkdir -p $$(@D) && $$(CXX) $$($(2)_CXXFLAGS) -fno-exceptions -fno-rtti -MMD -MP -c $$< -o $$@
$$(BUILD)/$(1)/obj/%.S.o: %.S $$(BUILD)/.flags | $$(BUILD)/.toolchain
	$$(Q)mkdir -p $$(@D) && $$(CC) -g -I. $$(filter -D%,$$($(2)_CXXFLAGS)) -MMD -MP -c $$< -o $$@
$$(BUILD)/$(1)/gtest%.o: $$(BUILD)/.flags
	$$(call say,$(2),gtest$$*.cc)
	$$(Q)mkdir -p $$(@D) && $$(CXX) $$(filter-out $$(WARN),$$($(2)_CXXFLAGS)) -I$$(GTEST_DIR) -c $$(GTEST_DIR)/src/gtest$$*.cc -o $$@
$$(BUILD)/$(1)/libvthr_runtime.a: $$(addprefix $$(BUILD)/$(1)/obj/,$$(addsuffix .o,$$(runtime_src)))
	$$(Q)rm -f $$@ && ar rcs $$@ $$^
$$(BUILD)/$(1)/%: tests/unit/%.cc $$(BUILD)/$(1)/gtest-all.o $$(BUILD)/$(1)/gtest_main.o $$(BUILD)/$(1)/libvthr_runtime.a $$(BUILD)/.flags
	$$(call say,$(2),$$<)
	$$(Q)mkdir -p $$(@D) && $$(CXX) $$($(2)_CXXFLAGS) $$(call deps,$$@) $$(filter %.cc %.o %.a,$$^) $$(STATIC_LIBS) -ldl -o $$@
$$(BUILD)/$(1)/%: tests/seeded/%.cc $$(BUILD)/$(1)/gtest-all.o $$(BUILD)/$(1)/libvthr_runtime.a $$(BUILD)/.flags
	$$(call say,$(2),$$<)
	$$(Q)mkdir -p $$(@D) && $$(CXX) $$($(2)_CXXFLAGS) $$(call deps,$$@) $$(filter %.cc %.o %.a,$$^) $$(STATIC_LIBS) -ldl -o $$@
endef
$(eval $(call sanitizer_rules,tsan,TSAN))
$(eval $(call sanitizer_rules,asan,ASAN))

# --- what a user runs ------------------------------------------------------------------------------
packages:
	$(need) build check servers bench

demo:
	$(need) build
	$(submake) all $(call prog_bins,demo)
	$(Q)BUILD=$(BUILD) LIB=$(LIB) tests/demo/demo.sh

run_tests = $(Q)python3 tests/run.py --lib $(LIB) --build $(BUILD) --tsan '$(TSAN_UNITS)' --asan '$(ASAN_UNITS)'
check:
	$(need) build check
	$(submake) all tests tsan asan
	$(run_tests) --tools $(RUN_FLAGS)

check-tsan check-asan:
	$(need) build check
	$(submake) $(@:check-%=%)
	$(run_tests) --only $(@:check-%=%) $(RUN_FLAGS)

# The cases 50 times each, the slower ones 20 times; the stress programs with STRESS=10.
check-long:
	$(need) build check servers
	$(submake) all tests tsan asan
	$(run_tests) --tools --long $(RUN_FLAGS)

# A random mix of everything for SOAK_SECONDS (600); check runs the same program for 5 s.
soak:
	$(need) build
	$(submake) all $(BUILD)/tests/stress/soak
	$(Q)BUILD=$(BUILD) LIB=$(LIB) tests/tools/soak

bench bench-quick:
	$(need) build bench
	$(submake) all $(bench_bin)
	$(Q)BUILD=$(BUILD) LIB=$(LIB) python3 tests/bench/bench.py $(if $(filter bench-quick,$@),--quick) $(BENCH_FLAGS)

install: all
	$(Q)install -d $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/bin
	$(Q)install -m 644 $(BUILD)/libvthr.so $(DESTDIR)$(PREFIX)/lib/libvthr.so
	$(if $(tool),$(Q)install -m 755 $(BUILD)/vthr $(DESTDIR)$(PREFIX)/bin/vthr)
	$(if $(wildcard diag/vthr-gdb.py),$(Q)install -D -m 644 diag/vthr-gdb.py $(DESTDIR)$(PREFIX)/share/vthr/vthr-gdb.py)
	@echo "installed $(DESTDIR)$(PREFIX)/lib/libvthr.so"

uninstall:
	$(Q)rm -f $(DESTDIR)$(PREFIX)/lib/libvthr.so $(DESTDIR)$(PREFIX)/bin/vthr $(DESTDIR)$(PREFIX)/share/vthr/vthr-gdb.py
	$(Q)rmdir $(DESTDIR)$(PREFIX)/share/vthr 2>/dev/null || true

# --- the sources -----------------------------------------------------------------------------------
# Our own code. The programs under tests/ and examples/ are as strangers write them.
formatted := $(wildcard $(foreach d,runtime interpose diag tests/unit tests/model,$(d)/*.cc $(d)/*.h))
format:
	$(Q)clang-format -i $(formatted)

lint:
	$(need) lint
	$(Q)clang-format --dry-run -Werror $(formatted)
	$(Q)cppcheck --quiet -j$(JOBS) --std=c++17 --language=c++ --enable=warning,performance,portability --inline-suppr \
	  --suppressions-list=tests/tools/cppcheck.suppress --error-exitcode=1 -I. runtime interpose diag
	$(Q)printf '%s\n' $(filter-out %.S,$(runtime_src) $(interpose_src)) $(diag_src) | \
	  xargs -P$(JOBS) -I{} clang-tidy --quiet {} -- $(filter-out $(WARN),$(LIB_CXXFLAGS)) 2>/dev/null
	@echo "lint: ok"

layers:
	$(Q)python3 tests/tools/layers.py

symbols: lib
	$(Q)python3 tests/tools/symbols.py $(BUILD)/libvthr.so interpose/symbols.def

# The table in README.md from runtime/options.def.
options: tool
	$(Q)tests/tools/option_table.py $(BUILD)/vthr --write

clean:
	$(Q)rm -rf $(BUILD)

help:
	@echo "make              the library, the command line tool and the examples, in $(BUILD)/"
	@echo "make demo         a thread-per-connection server with 1,000 connections, under libvthr and natively"
	@echo "make check        build and run all tests (check-long: longer; check-tsan, check-asan: units under sanitizers)"
	@echo "make soak         a random mix of everything for SOAK_SECONDS=600 seconds"
	@echo "make bench        the performance table (bench-quick: a short run)"
	@echo "make install      into PREFIX=$(PREFIX); make uninstall"
	@echo "make format lint layers symbols    the rules for the sources"
	@echo "make options      put the table of runtime/options.def into README.md"
	@echo "make packages     install every package that any target needs (demo, check and bench do it for themselves)"
	@echo "make clean"
	@echo "Variables: V=1 shows commands, BUILD=DIR, LIB=FILE tests another library, RUN_FLAGS='--filter REGEX' and other"
	@echo "options of tests/run.py, JOBS=N"

-include $(wildcard $(BUILD)/obj/*/*.d $(BUILD)/tests/*/*.d $(BUILD)/examples/*.d $(BUILD)/tsan/*.d $(BUILD)/asan/*.d $(BUILD)/tsan/obj/*/*.d $(BUILD)/asan/obj/*/*.d)
