#!/usr/bin/env bash
# `World::from_env` under the launchers whose variables it reads: Open MPI, MPICH, Slurm with two nodes on this machine, and
# torchrun where there is one. They start examples/ranks as several processes, which together must load what one process alone
# loads, batch by batch; also if all are killed on the way, and others go on. As root, installs what is missing by apt.
#
#     ci/launchers.sh                  all
#     ci/launchers.sh openmpi slurm    these: openmpi, mpich, torch, slurm, resume
. "$(dirname "$0")/lib.sh"

run cargo build --example ranks --no-default-features
work=$(mktemp -d)
stop() {
    local started
    mapfile -t started < <(jobs -p)
    ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap stop EXIT

# `ranks FOLDER ARGUMENTS`: the example, which writes to a file of its own there, named by its process.
ln -s "$(realpath "${CARGO_TARGET_DIR:-target}/debug/examples/ranks")" "$work/example"
cat >"$work/ranks" <<'END'
#!/bin/sh
folder=$1
shift
exec "$(dirname "$0")/example" --epochs 2 "$@" >"$folder/$$"
END
# `batch [LAUNCHER] PROGRAM ARGUMENTS`: a batch script for Slurm with this one command, in a job of two nodes and four tasks.
# (`sbatch --wait` asks only every ten seconds whether the job has ended.)
cat >"$work/batch" <<'END'
#!/bin/sh
work=$(dirname "$0")
status=$(mktemp -u "$work/status-XXXXXX")
mkfifo "$status"
sbatch --quiet --nodes 2 --ntasks 4 --output "$work/batch.log" --open-mode append --wrap "$*; echo \$? >$status" &&
    exit "$(cat "$status")"
END
# `first PROGRAM ARGUMENTS`: in a step, only its first task runs that.
cat >"$work/first" <<'END'
#!/bin/sh
[ "$SLURM_PROCID" = 0 ] || exit 0
exec "$@"
END
chmod +x "$work/ranks" "$work/batch" "$work/first"

# What ranks printed, put together: epoch, batch, position and number of each sample, in order.
together() {
    awk '/ epoch / { for (i = 11; i <= NF; i++) print $6 + 0, $8 + 0, $10 + i - 11, $i }' "$@" | sort -n -k1,1 -k3,3 -k4,4
}

# `expect LOCAL_RANKS LAUNCHER...`: it starts as many processes as there are local ranks, which are in the order of the ranks.
launches=0
expect() {
    local locals=$1 ranks=() rank=0 folder
    shift
    launches=$((launches + 1))
    folder=$work/$launches
    mkdir "$folder"
    step "${*/#$work\//}"
    if ! timeout 60 "$@" "$work/ranks" "$folder" 2>"$folder.log"; then
        cat "$work"/*.log "$folder.log"
        return 1
    fi
    for each in $locals; do
        ranks+=("rank $rank of $(wc -w <<<"$locals"), GPU $each of this host")
        rank=$((rank + 1))
    done
    diff <(printf '%s\n' "${ranks[@]}") <(grep -h GPU "$folder"/* | sort)
    same "$work/alone" <(together "$folder"/*)
}

same() {
    diff "$1" "$2" >"$work/diff" && return
    printf '< alone, > together:\n%s\n' "$(head -n 20 "$work/diff")"
    return 1
}

# `installed PROGRAM PACKAGES`: whether there is such a program, once these packages are installed.
updated=
installed() {
    local program=$1
    shift
    command -v "$program" >/dev/null && return
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        [[ $updated ]] || alone apt-get update >&2 || true
        updated=yes
        DEBIAN_FRONTEND=noninteractive alone apt-get install -y --no-install-recommends "$@" >&2 || true
    fi
    command -v "$program" >/dev/null || {
        skip "$program is missing, and the packages $* could not be installed"
        return 1
    }
}

openmpi=(mpirun.openmpi --oversubscribe)
[[ $(id -u) != 0 ]] || openmpi+=(--allow-run-as-root)
mpich=(mpirun.mpich)

openmpi() {
    installed "${openmpi[0]}" openmpi-bin || return 0
    expect "0 1 2 3" "${openmpi[@]}" -n 4
}

mpich() {
    installed "${mpich[0]}" mpich || return 0
    expect "0 1 2 3" "${mpich[@]}" -n 4
}

torch() {
    command -v torchrun >/dev/null || {
        skip "there is no torchrun"
        return
    }
    expect "0 1 2 3" torchrun --standalone --nproc-per-node 4 --no-python
}

slurm() {
    installed slurmctld slurmctld slurmd slurm-client munge || return 0
    start_slurm
    local srun=(srun --nodes 2 --ntasks 4) # three tasks on the first node, one on the second
    expect "0 1 2 0" "${srun[@]}"
    if srun --mpi=list 2>&1 | grep -qw pmi2; then
        expect "0 1 2 0" "${srun[@]}" --mpi=pmi2
    else
        skip "srun --mpi=pmi2, which this Slurm was built without"
    fi
    expect "0" salloc --quiet --nodes 2 --ntasks 4
    expect "0" salloc --quiet --nodes 2 --ntasks 4 srun --interactive --preserve-env # as for a shell on the first node
    expect "0 1 2 0" salloc --quiet --nodes 2 --ntasks 4 srun
    expect "0" "$work/batch"
    expect "0 1 2 0" "$work/batch" srun
    expect "0 0" "$work/batch" srun --ntasks 2
    expect "0" srun --ntasks 2 "$work/first" "$work/batch"
    local -n mpirun
    for mpirun in openmpi mpich; do
        if command -v "${mpirun[0]}" >/dev/null; then
            expect "0 1 2 0" "$work/batch" "${mpirun[@]}" -n 4
        else
            skip "${mpirun[0]} in a batch script, for it is missing"
        fi
    done
}

# Two nodes, without systemd or cgroups, which listen on this machine's loopback only.
start_slurm() {
    local host port=$((20000 + $$ % 10000)) node cgroups
    host=$(hostname -s)
    head -c 128 /dev/urandom >"$work/munge.key"
    chmod 600 "$work/munge.key"
    chmod 755 "$work"
    cat >"$work/slurm.conf" <<END
ClusterName=launchers
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmdSpoolDir=$work/%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerParameters=batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4
PartitionName=all Nodes=ALL Default=YES
END
    export SLURM_CONF=$work/slurm.conf
    mkdir "$work/state" "$work/one" "$work/two"
    step "slurmctld, and slurmd twice"
    munged --foreground --socket "$work/munge.socket" --key-file "$work/munge.key" --pid-file "$work/munged.pid" \
        --seed-file "$work/munged.seed" --log-file "$work/munged.log" &>/dev/null &
    slurmctld -D &>"$work/slurmctld.log" &
    for cgroups in disabled cgroup/v1; do # Slurm 22.05 has no `disabled`, but no need of the other
        echo "CgroupPlugin=$cgroups" >"$work/cgroup.conf"
        for node in one two; do
            slurmd -D -N "$node" &>>"$work/slurmd-$node.log" &
        done
        for _ in {1..150}; do
            [[ $(sinfo --noheader --states idle --format %D 2>"$work/sinfo.log") != 2 ]] || return 0
            kill -0 $! 2>/dev/null || break
            sleep 0.2
        done
    done
    cat "$work"/*.log
    return 1
}

# Four processes are killed in mid-epoch, two go on and are killed in the same epoch, three finish. What each run did before the
# state from which the next went on, and all that the last did, must be what one process alone does.
resume() {
    local -n mpirun=openmpi
    command -v "${mpirun[0]}" >/dev/null || local -n mpirun=mpich
    command -v "${mpirun[0]}" >/dev/null || {
        skip "resuming, for neither Open MPI nor MPICH is here"
        return
    }
    interrupt run-1 4 120
    interrupt run-2 2 360 --resume "$work/run-1.state"
    step "${mpirun[*]} -n 3 ranks --resume run-2.state"
    mkdir "$work/run-3"
    timeout 60 "${mpirun[@]}" -n 3 "$work/ranks" "$work/run-3" --resume "$work/run-2.state"
    same <(cut -d' ' -f1,3,4 "$work/alone") <(
        {
            done_before "$work/run-1"
            done_before "$work/run-2"
            together "$work"/run-3/*
        } | cut -d' ' -f1,3,4 | sort -n -k1,1 -k2,2 -k3,3
    )
    launches=$((launches + 3))
}

# `interrupt RUN RANKS POSITION ARGUMENTS`: starts as many ranks. When all have come to this position, one stops while the others do
# five steps more; then all are killed. RUN.state is the state of the one that stopped.
interrupt() {
    local run=$work/$1 ranks=$2 position=$3 job processes
    shift 3
    step "killed: ${mpirun[*]} -n $ranks ranks ${*/#$work\//}"
    mkdir "$run" "$run.states"
    "${mpirun[@]}" -n "$ranks" "$work/ranks" "$run" --save "$run.states" --pause-ms 100 "$@" &>"$run.log" &
    job=$!
    reached head "$position"
    mapfile -t processes < <(ls "$run")
    kill -STOP "${processes[0]}"
    reached tail $((position + 60))
    kill -KILL "${processes[@]}"
    if wait "$job"; then
        echo "killed, and nobody noticed"
        return 1
    fi
    states | head -n 1 | cut -d' ' -f3- >"$run.state"
    cat "$run.states"/rank-?
}

# `reached head|tail POSITION`: waits until the rank that is furthest behind or ahead has come to this position of epoch 0.
reached() {
    local epoch at
    for _ in {1..300}; do
        sleep 0.1
        kill -0 "$job" 2>/dev/null || break
        read -r epoch at _ < <(states | "$1" -n 1) || continue
        if [[ $(states | wc -l) == "$ranks" ]] && ((epoch == 0 && at >= $2)); then
            return
        fi
    done
    cat "$run.log"
    states
    return 1
}

# The states of the ranks, each behind its epoch and position; first the one that is furthest behind.
states() {
    find "$run.states" -name 'rank-?' -exec cat {} + | sed -E 's/.* epoch=([0-9]+) position=([0-9]+) .*/\1 \2 &/' | sort -n -k1,1 -k2,2
}

# `done_before RUN`: what its ranks did of what lies before its state.
done_before() {
    local state
    state=$(<"$1.state")
    [[ $state =~ \ epoch=([0-9]+)\ position=([0-9]+)\  ]]
    together "$1"/* | awk -v epoch="${BASH_REMATCH[1]}" -v at="${BASH_REMATCH[2]}" '$1 < epoch || ($1 == epoch && $3 < at)'
}

step "one process alone"
mkdir "$work/0"
"$work/ranks" "$work/0"
together "$work"/0/* >"$work/alone"
awk '
    { each += !seen[$1, $4]++ }
    END { if (NR != 2000 || each != 2000) { print NR " samples in two epochs, " each " of them once"; exit 1 } }' "$work/alone"

launchers=("$@")
(($#)) || launchers=(openmpi mpich torch slurm resume)
for launcher in "${launchers[@]}"; do
    "$launcher"
done
((launches > 0)) || skip_all "no launcher is here"
note "$launches launches"
