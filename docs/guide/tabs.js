// A snippet in Rust with the same in Python right behind it becomes one box with two tabs. What was chosen stays, on all pages. Without this
// script, both are there, one after the other.
(() => {
    const names = { rust: "Rust", python: "Python" };
    const language = (pre) => Object.keys(names).find((name) => pre?.querySelector(`code.language-${name}`));
    const remembered = () => {
        try {
            return localStorage.getItem("pinfeed-language");
        } catch {
            return null; // (pages of a file may have no storage)
        }
    };
    const pairs = [];
    const choose = (chosen) => {
        for (const { tabs, boxes } of pairs) {
            for (const name of Object.keys(names)) {
                boxes[name].hidden = name !== chosen;
                tabs[name].setAttribute("aria-selected", String(name === chosen));
            }
        }
        try {
            localStorage.setItem("pinfeed-language", chosen);
        } catch {}
    };
    for (const first of document.querySelectorAll("main > pre")) {
        const second = first.nextElementSibling;
        if (language(first) !== "rust" || second?.tagName !== "PRE" || language(second) !== "python") continue;
        const bar = document.createElement("div");
        bar.className = "tabs";
        bar.setAttribute("role", "tablist");
        const pair = { tabs: {}, boxes: { rust: first, python: second } };
        for (const name of Object.keys(names)) {
            const tab = document.createElement("button");
            tab.type = "button";
            tab.textContent = names[name];
            tab.setAttribute("role", "tab");
            tab.addEventListener("click", () => {
                const top = bar.getBoundingClientRect().top;
                choose(name);
                window.scrollBy(0, bar.getBoundingClientRect().top - top); // boxes above have changed, too
            });
            bar.append(tab);
            pair.tabs[name] = tab;
        }
        first.before(bar);
        first.classList.add("tabbed");
        second.classList.add("tabbed");
        pairs.push(pair);
    }
    const asked = new URLSearchParams(location.search).get("language");
    choose(asked in names ? asked : remembered() === "python" ? "python" : "rust");
})();
