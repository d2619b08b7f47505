//! Which file imports what from which other file, and the cycles in that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// `imports[a][b]` are the items defined in `b` that `a` names.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Imports {
    imports: BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>,
}

impl Imports {
    /// An import from the file itself is none.
    pub(crate) fn add(&mut self, importer: &Path, definer: &Path, item: &str) {
        if importer != definer {
            self.imports
                .entry(importer.to_owned())
                .or_default()
                .entry(definer.to_owned())
                .or_default()
                .insert(item.to_owned());
        }
    }

    /// The groups of files that can each be reached from each other, and the imports within them.
    pub(crate) fn cycles(&self) -> Vec<Cycle> {
        let mut seen = BTreeSet::new();
        let mut cycles = Vec::new();
        for file in self.imports.keys() {
            if seen.contains(file) {
                continue;
            }
            let group: BTreeSet<PathBuf> = self
                .reachable(file)
                .into_iter()
                .filter(|other| self.reachable(other).contains(file))
                .collect();
            seen.extend(group.iter().cloned());
            if !group.is_empty() {
                cycles.push(self.within(&group));
            }
        }
        cycles
    }

    /// A longest chain of files of which each imports from the next. There must be no cycle.
    pub(crate) fn longest_chain(&self) -> Vec<&Path> {
        let mut longest = BTreeMap::new();
        let chains = self
            .imports
            .keys()
            .map(|file| self.chain(file, &mut longest));
        chains.max_by_key(Vec::len).unwrap_or_default()
    }

    /// A longest chain that begins at `file`; `known` has those of other files.
    fn chain<'i>(
        &'i self,
        file: &'i Path,
        known: &mut BTreeMap<&'i Path, Vec<&'i Path>>,
    ) -> Vec<&'i Path> {
        if let Some(chain) = known.get(file) {
            return chain.clone();
        }
        let definers = self.imports.get(file).into_iter().flatten();
        let chains = definers.map(|(definer, _)| self.chain(definer, known));
        let rest = chains.max_by_key(Vec::len).unwrap_or_default();
        let chain = [vec![file], rest].concat();
        known.insert(file, chain.clone());
        chain
    }

    /// The imports from a folder of `layers` by a later one. Files in none of them may import from all.
    pub(crate) fn upward(&self, layers: &[&str]) -> Vec<(&Path, &Path)> {
        let layer = |file: &Path| {
            let mut folders = file.components().map(|it| it.as_os_str());
            folders.find_map(|folder| layers.iter().position(|layer| folder == *layer))
        };
        let pairs = self.imports.iter().flat_map(|(importer, definers)| {
            let definers = definers.keys();
            definers.map(|definer| (importer.as_path(), definer.as_path()))
        });
        let is_upward = |(importer, definer): &(&Path, &Path)| {
            let (from, to) = (layer(importer), layer(definer));
            from.zip(to).is_some_and(|(from, to)| to < from)
        };
        pairs.filter(is_upward).collect()
    }

    /// All files that `file` imports from, directly or not; contains `file` only if it is in a cycle.
    fn reachable(&self, file: &Path) -> BTreeSet<PathBuf> {
        let mut reached = BTreeSet::new();
        let mut next = vec![file];
        while let Some(importer) = next.pop() {
            for definer in self.imports.get(importer).into_iter().flatten() {
                if reached.insert(definer.0.clone()) {
                    next.push(definer.0);
                }
            }
        }
        reached
    }

    fn within(&self, group: &BTreeSet<PathBuf>) -> Cycle {
        let imports = |importer: &PathBuf| {
            self.imports[importer]
                .iter()
                .filter(|(definer, _)| group.contains(*definer))
                .map(|(definer, items)| (importer.clone(), definer.clone(), items.clone()))
                .collect::<Vec<_>>()
        };
        Cycle(group.iter().flat_map(imports).collect())
    }
}

/// The imports among files that can each be reached from each other.
#[derive(Debug, PartialEq)]
pub(crate) struct Cycle(Vec<(PathBuf, PathBuf, BTreeSet<String>)>);

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: BTreeSet<_> = self.0.iter().map(|(importer, ..)| importer).collect();
        writeln!(f, "import cycle of {} files", files.len())?;
        for (importer, definer, items) in &self.0 {
            let items: Vec<_> = items.iter().map(String::as_str).collect();
            writeln!(
                f,
                "  {} imports from {}: {}",
                importer.display(),
                definer.display(),
                items.join(", ")
            )?;
        }
        Ok(())
    }
}
