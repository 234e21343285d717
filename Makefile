# make demo     see it work: a private etcd and Postgres, a table, IDs
# make check    every test
# make install  build and install for the Postgres of PG_CONFIG
#
# The long ones (see the README): make sim|mutations|model|drill|torture

ifneq (,$(filter demo demo-stop check sim mutations model drill torture,$(MAKECMDGOALS)))

# These install the packages they need first, so nothing here may ask for Postgres.
.PHONY: demo demo-stop check sim mutations model drill torture
demo:
	@tools/demo.sh start
demo-stop:
	@tools/demo.sh stop
check:
	@tools/check.sh
# Until it is interrupted; or SECONDS=60, or SCHEDULES=100000 FIRST_SEED=1.
sim:
	@tools/packages.sh sim
	@$(MAKE) -s -C test/sim run SCHEDULES=$(or $(SCHEDULES),999999999) \
	    FIRST_SEED=$(or $(FIRST_SEED),$(shell date +%s)00000) SECONDS=$(SECONDS)
mutations:
	@tools/packages.sh sim
	@$(MAKE) -s -C test/sim mutations
model:
	@tools/packages.sh model
	@test/model/run.sh
drill:
	@tools/packages.sh drill
	@test/drills/run.sh drill $(DRILL)
torture:
	@tools/packages.sh drill
	@SEED='$(SEED)' RATE='$(RATE)' FAULTS='$(FAULTS)' EVERY='$(EVERY)' \
	    test/drills/run.sh torture $(or $(SECONDS),300)

else

MODULE_big = snowflake
EXTENSION = snowflake
DATA = $(addprefix sql/,$(notdir $(wildcard $(srcdir)/sql/snowflake--*.sql)))

CORE = src/core/generator.o
OBJS = $(CORE) src/etcd/endpoint.o \
	src/pg/module.o src/pg/settings.o src/pg/shmem.o src/pg/functions.o src/pg/stats.o
# The background worker is a library of its own: only it needs libcurl, and the some thirty
# libraries that come with it.
WORKER = snowflake_worker$(DLSUFFIX)
WORKER_OBJS = $(CORE) src/core/lease.o src/etcd/endpoint.o src/etcd/messages.o src/etcd/http.o \
	src/etcd/client.o src/pg/worker.o

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(PGXS),)
$(error $(PG_CONFIG) not found: install postgresql-server-dev-NN, or set PG_CONFIG)
endif

PG_CPPFLAGS = -I$(srcdir)/src -isystem $(shell $(PG_CONFIG) --includedir-server) -MMD -MP
PG_CXXFLAGS = -std=c++20 -fvisibility=hidden -fvisibility-inlines-hidden \
	-Wall -Wextra -Wshadow -Wconversion $(WERROR)
EXPORTS = -Wl,--version-script=$(srcdir)/src/pg/exports.map
SHLIB_LINK = $(EXPORTS) -lstdc++
EXTRA_CLEAN = $(WORKER) $(WORKER_OBJS) $(DEPS) build
DEPS = $(patsubst %.o,%.d,$(sort $(OBJS) $(WORKER_OBJS)))

# Postgres's bitcode step does not know C++20.
override with_llvm = no
include $(PGXS)

# The folders of the objects, for a build outside the source tree.
$(shell mkdir -p src/core src/etcd src/pg)
-include $(DEPS)

all: $(WORKER)
$(WORKER): $(WORKER_OBJS)
	$(CXX) $(CXXFLAGS) -shared -o $@ $^ $(LDFLAGS) $(LDFLAGS_SL) $(EXPORTS) -lcurl -lcrypto -lstdc++

install: install-worker
.PHONY: install-worker uninstall-worker refuse-other
install-worker: $(WORKER) installdirs
	$(INSTALL_SHLIB) $(WORKER) '$(DESTDIR)$(pkglibdir)/'
# pgEdge has an extension of the same name. Each file of ours contains this mark.
OURS = IDs without a duplicate
installdirs: refuse-other
refuse-other:
	@for file in '$(DESTDIR)$(datadir)/extension/snowflake.control' \
	    '$(DESTDIR)$(datadir)/extension/'snowflake--*.sql; do \
	  if [ -e "$$file" ] && ! grep -q '$(OURS)' "$$file"; then \
	    echo "$$file belongs to another extension named snowflake." >&2; \
	    echo "The two can't live in one installation: nothing was changed." >&2; \
	    echo "If no database uses the other one, uninstall it (its package, or its own" >&2; \
	    echo "'make uninstall') and try again; else use another Postgres installation." >&2; \
	    exit 1; \
	  fi; \
	done
uninstall: refuse-other uninstall-worker
uninstall-worker: refuse-other
	rm -f '$(DESTDIR)$(pkglibdir)/$(WORKER)'

endif
