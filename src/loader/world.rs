//! Ranks: which process of how many this one is, as its launcher says.

use std::env;
use std::fmt;

use crate::error::{Error, Result};

/// Which process of a run this one is: its rank, and the number of ranks (the world size).
///
/// [`from_env`](World::from_env) reads both from the launcher's environment variables; [`new`](World::new) takes them by hand. A process
/// that runs alone is [`single`](World::single), which is the default.
///
/// Ranks that must see the same batches (tensor, pipeline or context parallelism) form a *replica group*
/// ([`replicated`](World::replicated)). What counts for loading is the number of groups, and the number of this rank's group:
/// [`data_ranks`](World::data_ranks) and [`data_rank`](World::data_rank).
///
/// # Examples
///
/// ```
/// use pinfeed::loader::World;
///
/// let world = World::from_env()?; // rank 0 of 1, unless a launcher started this process
/// println!("{world}, GPU {} of this host", world.local_rank());
///
/// // Eight ranks, of which each two hold halves of one model: four of them see different batches.
/// let world = World::new(5, 8)?.replicated(2)?;
/// assert_eq!((world.data_rank(), world.data_ranks()), (2, 4));
/// # Ok::<(), pinfeed::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    rank: usize,
    size: usize,
    local_rank: usize,
    /// How many ranks, one after the other, see the same batches.
    replicas: usize,
}

/// The environment.
type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The variables by which a launcher tells a process its rank. Of several, the first that is set counts.
struct Launcher {
    name: &'static str,
    /// Where it is set, the launcher started the process.
    rank: &'static str,
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    /// Whether they mean this process.
    meant: fn(&Variables<'_>) -> bool,
}

/// What a launcher told a process.
struct Told {
    rank: usize,
    size: usize,
    /// The variable that says the size.
    size_name: &'static str,
    local_rank: Option<usize>,
}

/// `torchrun` sets it. What sets `RANK` and `WORLD_SIZE` without it is a script, or a shell in which they were left over.
const BY_TORCHRUN: &str = "TORCHELASTIC_RUN_ID";

/// In this order, because one may start the other: `srun` or `mpirun` one `torchrun` for each host, and `srun` what MPI starts.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        meant: |_| true,
    },
    Launcher {
        name: "Open MPI's mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        meant: |_| true,
    },
    Launcher {
        name: "MPICH's mpirun",
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"], // the latter is what HPE Cray's PALS sets
        meant: |_| true,
    },
    Launcher {
        name: "srun",
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        meant: of_a_step,
    },
];

/// Whether `srun` started this process.
///
/// A batch script has `SLURM_PROCID=0` and the job's number of tasks, and is not one of these tasks. It belongs to no step; but a
/// job that was submitted from within one inherits its variables. What Slurm sets anew in the script contradicts them: according to
/// `SLURM_GTIDS`, the first host has one task. (Where the step had one task on its first host, nothing tells.)
fn of_a_step(variable: &Variables<'_>) -> bool {
    let is = |name, value| variable(name).as_deref() == Some(value);
    let one_task = is("SLURM_NODEID", "0") && is("SLURM_GTIDS", "0");
    let several_tasks = variable("SLURM_STEP_TASKS_PER_NODE") // such as 3,1 or 4(x2)
        .is_some_and(|tasks| tasks.split([',', '(']).next() != Some("1"));
    variable("SLURM_STEP_ID").is_some() && !(one_task && several_tasks)
}

impl World {
    /// A process that runs alone: rank 0 of 1.
    pub const fn single() -> World {
        World {
            rank: 0,
            size: 1,
            local_rank: 0,
            replicas: 1,
        }
    }

    /// Rank `rank` of `size`, by hand. The local rank is the rank ([`with_local_rank`](World::with_local_rank) says
    /// otherwise).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `rank` is not below `size`.
    pub fn new(rank: usize, size: usize) -> Result<World> {
        if rank >= size {
            return Err(Error::option(
                "world",
                format!(
                    "has rank {rank} of {size}: ranks are counted from 0 to the world's size minus 1"
                ),
            ));
        }
        Ok(World {
            rank,
            size,
            local_rank: rank,
            replicas: 1,
        })
    }

    /// Asks the environment that the launcher made: `torchrun` (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`), Open MPI
    /// (`OMPI_COMM_WORLD_RANK`, ...), MPICH and Intel MPI (`PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`), and Slurm's `srun`
    /// (`SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`, `SLURM_LOCALID`), in this order. [`single`](World::single)
    /// if none of them started the process; a batch script of Slurm that `srun` did not start is none of its tasks.
    ///
    /// If the first of them does not tell the local rank, another that tells the same rank and size does: under
    /// `srun --mpi=pmi2`, for instance, or where a script sets `RANK` and `WORLD_SIZE` from Slurm's variables.
    ///
    /// Processes inherit all of these variables: what a rank starts is the same rank, unless the variables are removed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`], which names the variables, if one is missing beside another, is no number, or contradicts another. `RANK` and
    /// `WORLD_SIZE` that `torchrun` did not set (it sets `TORCHELASTIC_RUN_ID` as well) contradict another launcher's if they say fewer
    /// ranks, such as `WORLD_SIZE=1` that a shell had under `mpirun -n 8`, or as many and another rank. (More ranks are no contradiction: a
    /// launcher with one task for each host may have started them.)
    pub fn from_env() -> Result<World> {
        World::from_variables(|name| {
            let value = env::var_os(name)?;
            Some(value.to_string_lossy().into_owned())
        })
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<World> {
        for (place, launcher) in LAUNCHERS.iter().enumerate() {
            let Some(told) = launcher.told(&variable)? else {
                continue;
            };
            let others = LAUNCHERS[place + 1..].iter();
            let others = others.filter_map(|other| Some((other, other.told(&variable).ok()??)));
            let others: Vec<(&Launcher, Told)> = others.collect();
            if launcher.rank == "RANK" && variable(BY_TORCHRUN).is_none() {
                launcher.check(&told, others.first())?;
            }
            let agreed = others
                .iter()
                .filter(|(_, other)| (other.rank, other.size) == (told.rank, told.size))
                .find_map(|(_, other)| other.local_rank);
            return Ok(World {
                rank: told.rank,
                size: told.size,
                local_rank: told.local_rank.or(agreed).unwrap_or(told.rank),
                replicas: 1,
            });
        }
        let mut halves = LAUNCHERS.iter();
        if let Some(half) = halves.find_map(|launcher| launcher.local_rank_alone(&variable)) {
            return Err(half);
        }
        Ok(World::single())
    }

    /// The same, with another rank among the processes of this host.
    pub fn with_local_rank(self, local_rank: usize) -> World {
        World { local_rank, ..self }
    }

    /// The same, where each `replicas` ranks, one after the other, see the same batches.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if `replicas` is 0, or does not divide the world's size.
    pub fn replicated(self, replicas: usize) -> Result<World> {
        if replicas == 0 || !self.size.is_multiple_of(replicas) {
            return Err(Error::option(
                "world",
                format!(
                    "has {} ranks, which are no whole number of groups of {replicas}: all replica groups are equally large",
                    self.size
                ),
            ));
        }
        Ok(World { replicas, ..self })
    }

    /// This process among all, counted from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// This process among those of its host, counted from 0: most often the number of its GPU. The rank, if the launcher does not
    /// say.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// Which of the [`data_ranks`](World::data_ranks) different slices of each global batch this process sees.
    pub fn data_rank(&self) -> usize {
        self.rank / self.replicas
    }

    /// How many processes see different batches.
    pub fn data_ranks(&self) -> usize {
        self.size / self.replicas
    }
}

impl Default for World {
    fn default() -> World {
        World::single()
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl Launcher {
    /// What it says of this process; `None`: it did not start it.
    fn told(&self, variable: &Variables<'_>) -> Result<Option<Told>> {
        if !(self.meant)(variable) {
            return Ok(None);
        }
        let number = |name: &'static str| -> Result<Option<(&'static str, usize)>> {
            let Some(text) = variable(name) else {
                return Ok(None);
            };
            match text.trim().parse() {
                Ok(number) => Ok(Some((name, number))),
                Err(_) => Err(self.wrong(format!("{name}={text:?} is no number"))),
            }
        };
        let first = |names: &[&'static str]| {
            let mut numbers = names.iter().map(|name| number(name));
            numbers.find_map(Result::transpose).transpose()
        };
        let rank = number(self.rank)?;
        let size = first(self.size)?;
        let local_rank = first(self.local_rank)?;
        match (rank, size) {
            (None, None) => Ok(None),
            (Some((rank, _)), None) => Err(self.half(rank, self.size[0])),
            (None, Some((size, _))) => Err(self.half(size, self.rank)),
            (Some((rank_name, rank)), Some((size_name, size))) => {
                if rank >= size {
                    return Err(self.wrong(format!(
                        "{rank_name}={rank} is not below {size_name}={size}"
                    )));
                }
                if let Some((name, local_rank)) = local_rank.filter(|(_, local)| *local >= size) {
                    return Err(self.wrong(format!(
                        "{name}={local_rank} is not below {size_name}={size}"
                    )));
                }
                Ok(Some(Told {
                    rank,
                    size,
                    size_name,
                    local_rank: local_rank.map(|(_, local)| local),
                }))
            }
        }
    }

    /// Refuses numbers that cannot be this process's, because those of the launcher that started it are `other`.
    ///
    /// That launcher may have started one process for each host, which started this one: then there are more ranks than it knows.
    fn check(&self, told: &Told, other: Option<&(&Launcher, Told)>) -> Result<()> {
        let Some((launcher, other)) = other else {
            return Ok(());
        };
        if told.size > other.size || (told.rank, told.size) == (other.rank, other.size) {
            return Ok(());
        }
        let numbers = |rank_name, told: &Told| {
            let (rank, size) = (told.rank, told.size);
            format!("{rank_name}={rank} and {}={size}", told.size_name)
        };
        Err(Error::option(
            "world",
            format!(
                "is contradictory: {} were set beside {}, as {} set it up: unset those that were left over",
                numbers(self.rank, told),
                numbers(launcher.rank, other),
                launcher.name
            ),
        ))
    }

    /// The error of a process that knows its local rank and nothing else.
    fn local_rank_alone(&self, variable: &Variables<'_>) -> Option<Error> {
        let is_set = |name: &&&str| (self.meant)(variable) && variable(name).is_some();
        let name = self.local_rank.iter().find(is_set)?;
        Some(self.half(name, self.rank))
    }

    fn half(&self, set: &str, missing: &str) -> Error {
        self.wrong(format!(
            "{set} is set, and {missing} is not: set both, or neither for a process that runs alone"
        ))
    }

    fn wrong(&self, what: String) -> Error {
        Error::option("world", format!("as {} set it up: {what}", self.name))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn world(variables: &[(&str, &str)]) -> Result<World> {
        World::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn numbers(variables: &[(&str, &str)]) -> [usize; 3] {
        let world = world(variables).unwrap();
        [world.rank(), world.size(), world.local_rank()]
    }

    #[test]
    fn launchers_say_who_a_process_is() {
        assert_eq!(world(&[]).unwrap(), World::single());
        let torchrun = [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")];
        assert_eq!(numbers(&torchrun), [5, 8, 1]);
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ];
        assert_eq!(numbers(&mpi), [2, 4, 0]);
        let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert_eq!(numbers(&mpich), [1, 2, 1]);
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "6"),
            ("SLURM_LOCALID", "1"),
        ];
        assert_eq!(numbers(&slurm), [3, 6, 1]);
        // A step of fewer tasks than the job.
        let step = [&slurm[..], &[("SLURM_STEP_NUM_TASKS", "4")]].concat();
        assert_eq!(numbers(&step), [3, 4, 1]);
        // One torchrun for each host, which srun started.
        assert_eq!(numbers(&[&slurm[..], &torchrun].concat()), [5, 8, 1]);
    }

    /// `srun --mpi=pmi2` sets what MPICH's mpirun does, but for the local rank.
    #[test]
    fn a_local_rank_comes_from_a_launcher_that_agrees() {
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_LOCALID", "0"),
        ];
        let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
        assert_eq!(numbers(&[&slurm[..], &pmi].concat()), [3, 4, 0]);
        // Processes of which srun started none, but each host's first.
        let more = [("PMI_RANK", "3"), ("PMI_SIZE", "8")];
        assert_eq!(numbers(&[&slurm[..], &more].concat()), [3, 8, 3]);
    }

    /// What `sbatch` runs is none of the job's tasks, although it has the number of the first.
    #[test]
    fn a_batch_script_runs_alone() {
        let script = [
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_GTIDS", "0"),
            ("SLURM_NTASKS", "8"),
        ];
        assert_eq!(world(&script).unwrap(), World::single());
        // Its job was submitted from within a step of three tasks.
        let step = |tasks| {
            [
                ("SLURM_STEP_ID", "0"),
                ("SLURM_STEP_NUM_TASKS", "3"),
                ("SLURM_STEP_TASKS_PER_NODE", tasks),
            ]
        };
        for inherited in ["3", "2,1"] {
            let script = [&script[..], &step(inherited)].concat();
            assert_eq!(world(&script).unwrap(), World::single());
        }
        // The same numbers without a contradiction: the first of three tasks, each on a host of its own.
        let first = [&script[..], &step("1(x3)")].concat();
        assert_eq!(numbers(&first), [0, 3, 0]);
    }

    /// What a shell or a script set is not taken for what the launcher says.
    #[test]
    fn what_was_left_over_is_refused() {
        let started = |rank| {
            [
                ("OMPI_COMM_WORLD_RANK", rank),
                ("OMPI_COMM_WORLD_SIZE", "8"),
            ]
        };
        let with = |own: &[(&'static str, &'static str)], rank| {
            world(&[own, &started(rank)].concat()).map_err(|error| error.to_string())
        };
        let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
        let first = [("RANK", "0"), ("WORLD_SIZE", "8")];
        for (own, size) in [(&alone[..], 1), (&first, 8)] {
            let said = with(own, "3").unwrap_err();
            for part in [
                &format!("RANK=0 and WORLD_SIZE={size} were set"),
                "OMPI_COMM_WORLD_RANK=3 and OMPI_COMM_WORLD_SIZE=8",
                "Open MPI's mpirun",
                "unset",
            ] {
                assert!(said.contains(part), "{said}");
            }
        }
        assert!(with(&alone, "0").is_err());
        // The same numbers, as a script gives them.
        assert_eq!(with(&first, "0").unwrap(), World::new(0, 8).unwrap());
        // A torchrun for each task is a run of its own.
        let torchrun = [&alone[..], &[(BY_TORCHRUN, "none")]].concat();
        assert_eq!(with(&torchrun, "3").unwrap(), World::single());
        // Each task started four ranks.
        let more = [("RANK", "13"), ("WORLD_SIZE", "32"), ("LOCAL_RANK", "1")];
        assert_eq!(with(&more, "3").unwrap().rank(), 13);
    }

    /// Open MPI's daemons are tasks of Slurm, one on each host but the first: their numbers are not those of the ranks.
    #[test]
    fn a_launcher_below_another_is_believed() {
        let daemon = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_LOCALID", "0"),
        ];
        let rank = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ];
        assert_eq!(numbers(&[&daemon[..], &rank].concat()), [1, 2, 0]);
        // Also by a script that passes them on.
        let script = [("RANK", "1"), ("WORLD_SIZE", "2")];
        let all = [&daemon[..], &rank, &script].concat();
        assert_eq!(numbers(&all), [1, 2, 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let said = |variables: &[(&str, &str)]| world(variables).unwrap_err().to_string();
        let half = said(&[("RANK", "1"), ("LOCAL_RANK", "1")]);
        assert!(
            half.contains("RANK is set, and WORLD_SIZE is not"),
            "{half}"
        );
        let half = said(&[("LOCAL_RANK", "0")]);
        assert!(
            half.contains("LOCAL_RANK is set, and RANK is not"),
            "{half}"
        );
        let half = said(&[("OMPI_COMM_WORLD_LOCAL_RANK", "0")]);
        assert!(half.contains("OMPI_COMM_WORLD_RANK is not"), "{half}");
        // A script may say it beside a launcher that says the rest.
        let srun = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("LOCAL_RANK", "1"),
        ];
        assert_eq!(numbers(&srun), [3, 4, 1]);
        let half = said(&[("WORLD_SIZE", "4")]);
        assert!(
            half.contains("WORLD_SIZE is set, and RANK is not"),
            "{half}"
        );
        let beyond = said(&[("RANK", "4"), ("WORLD_SIZE", "4")]);
        assert!(
            beyond.contains("RANK=4 is not below WORLD_SIZE=4"),
            "{beyond}"
        );
        let local = said(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "7")]);
        assert!(
            local.contains("LOCAL_RANK=7 is not below WORLD_SIZE=2"),
            "{local}"
        );
        for text in ["", "one", "-1", "1.5"] {
            let wrong = said(&[("RANK", text), ("WORLD_SIZE", "4")]);
            assert!(
                wrong.contains(&format!("RANK={text:?} is no number")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn replicas_see_the_same_batches() {
        let rank = |rank| World::new(rank, 6).unwrap().replicated(3).unwrap();
        let groups = (0..6).map(|each| (rank(each).data_rank(), rank(each).data_ranks()));
        assert!(groups.eq([(0, 2), (0, 2), (0, 2), (1, 2), (1, 2), (1, 2)]));
        assert!(World::new(0, 6).unwrap().replicated(4).is_err());
        assert!(World::new(0, 6).unwrap().replicated(0).is_err());
        assert!(World::new(6, 6).is_err() && World::new(0, 0).is_err());
    }
}
