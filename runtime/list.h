// Intrusive doubly linked list with a sentinel. The owner locks; a node is in one list at most.
#pragma once

namespace vthr {

struct ListNode {
  ListNode* next = nullptr;
  ListNode* prev = nullptr;
  constexpr ListNode() = default;
  constexpr ListNode(ListNode* n, ListNode* p) : next(n), prev(p) {}
  bool linked() const { return next != nullptr; }
};

struct List {
  ListNode head;
  constexpr List() : head{&head, &head} {}
  void clear() { head.next = head.prev = &head; }
  bool empty() const { return head.next == &head; }
  ListNode* front() const { return empty() ? nullptr : head.next; }
  void push_back(ListNode* n) { insert(n, head.prev, &head); }
  void push_front(ListNode* n) { insert(n, &head, head.next); }
  ListNode* pop_front() {
    ListNode* n = front();
    if (n != nullptr) remove(n);
    return n;
  }
  static void remove(ListNode* n) {
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = n->prev = nullptr;
  }

 private:
  static void insert(ListNode* n, ListNode* before, ListNode* after) {
    n->prev = before;
    n->next = after;
    before->next = n;
    after->prev = n;
  }
};

}  // namespace vthr
